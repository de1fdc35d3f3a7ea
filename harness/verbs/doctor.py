"""`attnproof doctor`: check that `verify` can run here, and list what it will leave out."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

from attnproof.harness.escaping import escape_line
from attnproof.harness.running.errors import INFRASTRUCTURE, VERIFIED
from attnproof.harness.running.extras import EXTRAS, install_hint, missing
from attnproof.harness.running.parent.environment import describe, gpu_name, package_version
from attnproof.harness.verbs.messages import say

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def examine_machine() -> int:
    """Print one line per check; return exit code 0 if `verify` can run, 5 if not."""
    bad = False
    for state, text in _checks():
        say(escape_line(f"{_MARKS[state]} {text}"))
        bad |= state == "bad"
    say("verify cannot run here" if bad else "verify can run here")
    return INFRASTRUCTURE if bad else VERIFIED


def _checks() -> Generator[tuple[str, str], None, None]:
    """Yield the state ("ok", "note" or "bad") and the line of each check."""
    environment = describe()
    version = sys.version_info[:2]
    yield (
        "ok" if (3, 10) <= version <= (3, 13) else "note",
        f"Python {environment.python} (attnproof runs on 3.10 to 3.13)",
    )
    for name in ("torch", "numpy", "hypothesis", "msgspec", "typer", "rich"):
        installed = package_version(name)
        yield ("ok", f"{name} {installed}") if installed else ("bad", f"{name} is not installed")
    for name, use in (("jinja2", "index.html"), ("junitparser", "junit.xml")):
        if find_spec(name) is None:
            yield "note", f"{name} is not installed: verify does not write {use}"
    absent = yield from _extras()
    yield "ok", f"{environment.cpus} CPU cores ({environment.cpu})"
    yield _attempt("a worker process runs a case", _worker_runs)
    if "numba" not in absent:
        yield _attempt("numba compiles and caches a function", _numba_compiles)
    if not {"numba", "triton"} & absent:
        yield _attempt("Triton's interpreter runs a kernel", _interpreter_runs)
    yield _attempt("the current folder can be written", _folder_writable)
    gpu = gpu_name()
    missing = "no CUDA device: compiled kernels stay unverified"
    yield ("ok", f"GPU: {gpu}") if gpu else ("note", missing)


def _extras() -> Generator[tuple[str, str], None, set[str]]:
    """Yield a line for each package of an extra, or what it costs; return the absent ones."""
    from attnproof.harness.operations import ALL

    absent: set[str] = set()
    for extra in EXTRAS.values():
        lacking = missing(*extra.packages)
        for name in extra.packages:
            if name not in lacking:
                yield "ok", f"{name} {package_version(name)}"
        users = [op.name for op in ALL.values() if op.built_in.package in extra.packages]
        cost = extra.cost + (f" ({', '.join(users)})" if users else "")
        if lacking:
            absent.update(lacking)
            names = " and ".join(lacking)
            yield "note", f"without {names}: {cost}; {install_hint(lacking[0])}"
    return absent


def _attempt(name: str, check: Callable[[], str]) -> tuple[str, str]:
    problem = check()
    return ("bad", f"failed: {name}: {problem}") if problem else ("ok", name)


def _round_trip(candidate_name: str, operation_name: str) -> str:
    """Judge one boundary case of one operation; return the error, "" for none."""
    from attnproof.harness.operations import ALL
    from attnproof.harness.running.candidates import resolve
    from attnproof.harness.running.errors import AttnproofError
    from attnproof.harness.running.task.workers import Worker
    from attnproof.harness.running.worker.worker import warm_up
    from attnproof.harness.verbs.options import MEMORY_BYTES

    candidate = resolve([candidate_name], "auto")[0]
    warm_up([candidate])
    operation = ALL[operation_name]
    _, case = next(iter(operation.inputs.boundaries()))
    try:
        worker = Worker(
            candidate,
            {operation.name: operation},
            timeout_s=120,
            memory_bytes=MEMORY_BYTES,
        )
        failures = worker.judge(case).failures
        worker.stop()
    except AttnproofError as error:
        return str(error)
    return failures[0].message if failures else ""


def _worker_runs() -> str:
    return _round_trip("reference", "split_decodes_and_prefills")


def _numba_compiles() -> str:
    return _round_trip("optimized", "build_slot_mapping")


def _interpreter_runs() -> str:
    return _round_trip("optimized-triton", "build_slot_mapping")


def _folder_writable() -> str:
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()):
            return ""
    except OSError as error:
        return os.strerror(error.errno or 0)
