"""`attnproof bench`: verify the workloads, time them beside a peer, compare with a baseline."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

from attnproof.harness.escaping import escape_line
from attnproof.harness.running.candidates import SDPA, installed_target
from attnproof.harness.running.engines import engine_of
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.parent.environment import gpu_name
from attnproof.harness.verbs.checks import check_timing
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import BenchOptions, VerifyOptions
from attnproof.harness.verbs.verify import verify

PEER, OWN = "vllm", "optimized"
_ATTENTION = ("paged_attention", "decode_attention")
"""Operations whose peer is torch's attention."""
_ON_GPU = ("vllm-triton", "vllm", "flashinfer")
"""Candidates of engines that are peers on a GPU, if they can be imported."""
_IMPORT_S = 120.0
_EXAMPLES = 10
"""Cases drawn for each operation; `verify --bench` draws as many as `verify`."""


def bench(options: BenchOptions, *, command: str = "attnproof bench") -> int:
    """Verify, time and report; return the exit code. Raise UsageError before anything runs."""
    check_timing(options)
    if options.device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device is {options.device!r}: bench times on cpu and cuda only, "
            "use --device auto, cpu or cuda"
        )
    device = options.device
    if device == "auto":
        device = "cpu" if gpu_name() is None else "cuda"
    named = list(dict.fromkeys(options.against))
    peers = named or default_peers(options.ops, device)
    own = [name for name in options.candidates or [OWN] if name not in peers]
    if named and not own:
        raise UsageError(
            f"--against {' --against '.join(named)}: no other candidate to time; "
            "name one with --candidate"
        )
    options = replace(options, against=peers)
    verified = VerifyOptions(
        ops=options.ops,
        candidates=[*own, *peers],
        definitions=options.definitions,
        stub=options.stub,
        device=device,
        examples=_EXAMPLES,
        steps=0,
        seed=options.seed,
        vary=False,
        out=options.out,
        jobs=options.jobs,
        contract=options.contract,
        interface=options.interface,
        deviations=options.deviations,
        fail_on=options.fail_on,
        timeout_s=options.timeout_s,
        memory_gib=options.memory_gib,
        remember=False,
    )
    return verify(verified, command=command, timing=options, minimise_known=False)


def default_peers(ops: str = "", device: str = "cpu") -> list[str]:
    """Return the peers of a run that names none: on cuda all that can be imported.

    On a CPU torch's attention for attention alone, else `vllm` if installed, or `reference`.
    """
    attention = set(ops.split(",")) <= set(_ATTENTION)
    engines = [name for name in _ON_GPU if _is_importable(name)] if device == "cuda" else []
    if engines or attention:
        return [*engines, SDPA.name]
    return [PEER if find_spec(PEER) else "reference"]


def _is_importable(name: str) -> bool:
    """True if the engine of a candidate is installed, and a process of its own can import it."""
    target = installed_target(name) or ""
    engine = engine_of(target)
    if engine is None or find_spec(engine.package) is None:
        return False
    command = [sys.executable, "-c", f"import {target}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        say(f"note: {name} is not timed, its import takes more than {_IMPORT_S:.0f} s")
        return False
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        say(f"note: {name} is not timed, its import fails: {escape_line(' '.join(last))}")
    return not done.returncode
