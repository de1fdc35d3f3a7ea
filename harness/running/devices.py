"""Words of `--device`: which ones torch knows, and whether this machine has the device.

Any device string of torch is a lane. An extension of torch registers its device when it is
imported: torch imports those installed that declare themselves, or the candidate does.
"""

from __future__ import annotations

import importlib
import multiprocessing
import re
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection

from attnproof.harness.model.candidate import Candidate, device_type
from attnproof.harness.model.text import near_hint
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.parent.environment import gpu_name

WITHOUT_TENSORS = ("auto", "interpreter")
"""Words that are no device of torch."""
_EXTENSIONS = {"npu": "torch_npu", "mlu": "torch_mlu", "musa": "torch_musa", "gcu": "torch_gcu"}
"""Modules that register a device at their import, by its name."""
_USUAL = ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "mtia", "privateuseone", *_EXTENSIONS)
_SECONDS = 120.0
"""Time for the import of torch and of an extension, and the start of a device."""


def check_device(word: str) -> None:
    """Raise UsageError for a word that no device has."""
    if word in WITHOUT_TENSORS:
        return
    kind = device_type(word)
    if not re.fullmatch(r"[a-z][a-z0-9_]*(:\d{1,3})?", word) or not _is_known(kind):
        hint = near_hint({"gpu": "cuda"}.get(kind, kind), [*WITHOUT_TENSORS, *_USUAL])
        raise UsageError(
            f"--device is {word!r}: {hint}expected auto, interpreter, or a device of torch such as "
            "cpu, cuda, cuda:1, xpu, mps, npu:0"
        )


def _is_known(kind: str) -> bool:
    if kind in _USUAL:
        return True
    import torch

    try:
        return torch.device(kind).type != "meta"  # whose tensors have no values
    except RuntimeError:
        return False


def why_absent(candidate: Candidate) -> str:
    """Return why the device of the candidate cannot be used on this machine, "" if it can."""
    kind = device_type(candidate.device)
    if kind == "cpu":
        return ""
    if kind == "cuda" and gpu_name() is None:
        return "no CUDA device on this machine"
    return "" if candidate.device == "cuda" else _problem(candidate)


@lru_cache(maxsize=100)
def _problem(candidate: Candidate) -> str:
    """Return why no tensor can be made on the device, "" if one can."""
    # In a child process: a process that has used a device cannot fork workers that use it.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send_problem, args=(theirs, candidate))
    child.start()
    theirs.close()
    try:
        if ours.poll(_SECONDS):
            return str(ours.recv())
    except EOFError:
        pass
    finally:
        child.kill()
        child.join()
    return f"{candidate.device} ends the process, or does not answer within {_SECONDS:.0f} s"


def _send_problem(connection: Connection, candidate: Candidate) -> None:
    import torch

    from attnproof.harness.running.loading import load

    kind = device_type(candidate.device)
    with suppress(ImportError):
        importlib.import_module(_EXTENSIONS.get(kind, "torch"))
    if not _is_usable(candidate.device):
        with suppress(BaseException):  # what is wrong with it is said where it is verified
            load(candidate)
    try:
        torch.empty(1, device=candidate.device)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        connection.send(f"no device {candidate.device} on this machine: {first[:160]}")
    else:
        connection.send("")


def _is_usable(device: str) -> bool:
    import torch

    try:
        torch.empty(1, device=device)
    except Exception:
        return False
    return True
