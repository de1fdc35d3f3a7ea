"""`attnproof.verify`: a verification from Python, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Union

import msgspec

from attnproof.api.exchange import Answer, Order
from attnproof.harness.model.run import DeviationResult, Finding, OperationResult, Run, RunVerdict
from attnproof.harness.running.errors import (
    USAGE,
    AttnproofError,
    InfrastructureError,
    UsageError,
)

Target = Union[str, "os.PathLike[str]", ModuleType]
"""A candidate: built-in or installed name, dotted module, file or folder, or a module."""
_Path = Union[str, "os.PathLike[str]"]
_STOPPING_S = 20.0
"""Seconds that the process may take to end after an interrupt."""
_PROGRAM = (
    "import sys, json\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from attnproof.api.process import serve\n"
    "serve()\n"
)
"""Program of the process: it finds modules where its parent does."""


@dataclass(frozen=True)
class VerificationRun:
    """The result of `attnproof.verify`."""

    run: Run
    """The whole record, with settings, environment and notes."""
    exit_code: int
    """Exit code of `attnproof verify`: 0 verified, 1 mismatch, 3 incomplete, 5 infrastructure."""
    report: Path | None
    """Folder of the report, None if no `out` was given."""
    _summary: str = field(repr=False)
    _cards: dict[str, str] = field(repr=False)

    @property
    def ok(self) -> bool:
        """True if every operation that the candidates offer is verified."""
        return self.exit_code == 0

    @property
    def verdict(self) -> RunVerdict:
        """The verdict: PASS, FAIL or INCOMPLETE."""
        return self.run.verdict

    @property
    def findings(self) -> list[Finding]:
        """The mistakes that fail the candidates, each with the smallest case that shows it.

        Of its fields, `kind` is the class and `command` a command line that replays the case.
        """
        return self.run.findings

    @property
    def advice(self) -> list[Finding]:
        """Findings of classes that the contract does not judge."""
        return self.run.advice

    @property
    def deviations(self) -> list[DeviationResult]:
        """Known deviations of the candidates, stale ones too."""
        return self.run.deviations

    @property
    def operations(self) -> list[OperationResult]:
        """The verdict on each operation of each candidate."""
        return self.run.operations

    def summary(self) -> str:
        """Return the findings and the verdict in lines of plain text."""
        return self._summary

    def card(self, finding: Finding) -> str:
        """Return a finding in plain text, with a picture of its case and the replay command.

        Raise KeyError for a finding of another run.
        """
        return self._cards[finding.id]


def verify(
    target: Target | Sequence[Target],
    *,
    contract: str = "engine",
    fail_on: str = "",
    ops: str | Sequence[str] | None = None,
    device: str = "auto",
    deviations: _Path | Sequence[_Path] = (),
    interface: str | None = None,
    stub: str = "",
    out: str | os.PathLike[str] | None = None,
    examples: int | None = None,
    steps: int | None = None,
    depth: str = "default",
    seed: int | None = None,
    traces: Sequence[str | os.PathLike[str]] = (),
    corpus: str | os.PathLike[str] | None = None,
    jobs: int = 0,
    timeout_s: float = 20.0,
    memory_gib: float = 4.0,
    remember: bool = False,
    progress: bool = False,
) -> VerificationRun:
    """Verify candidates against the reference, as `attnproof verify` does, and return the run.

    `target` is a candidate or several. The parameters are the options of the command line;
    `ops` names operations, all by default. `deviations` are files of known deviations or shipped
    lists, one or several. pyproject.toml is not read. `out` is the folder of the report: without it
    nothing is left behind, and each replay command holds its case. `remember` keeps failing
    cases in `.attnproof/` of the current folder and runs them again. `progress` prints a line
    for each operation; otherwise nothing is printed.

    The run is made in a new process with the `sys.path` of this one: a candidate that crashes,
    and modules, threads and CUDA contexts of this process, do not matter to it. A module is
    imported there again, from its name or its file.

    Raise UsageError for a mistake in the arguments, before anything runs; AttnproofError if the
    machine fails.
    """
    with tempfile.TemporaryDirectory(prefix="attnproof-") as folder:
        order = Order(
            candidates=[_name(each) for each in _listed(target)],
            ops=_joined(ops),
            contract=contract,
            fail_on=fail_on,
            device=device,
            deviations=_names(deviations),
            interface=interface or "",
            stub=stub,
            out=str(Path(folder) / "out") if out is None else os.fspath(out),
            kept=out is not None,
            examples=examples,
            steps=steps,
            depth=depth,
            seed=seed,
            traces=[os.fspath(trace) for trace in traces],
            corpus=None if corpus is None else os.fspath(corpus),
            jobs=jobs,
            timeout_s=timeout_s,
            memory_gib=memory_gib,
            remember=remember,
            progress=progress,
            answer=str(Path(folder) / "answer"),
        )
        return _run_of(_answer(_checked(order)))


def _checked(order: Order) -> Order:
    """Return the order; raise UsageError for a value of another type."""
    try:
        return msgspec.json.decode(msgspec.json.encode(order), type=Order)
    except (TypeError, msgspec.ValidationError) as error:
        what, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").partition("[")[0]
        raise UsageError(f"{name}: {what}" if name else what) from None


def _names(deviations: _Path | Sequence[_Path]) -> list[str]:
    """Return the names of files and shipped lists."""
    if isinstance(deviations, str | os.PathLike):
        return [os.fspath(deviations)]
    return [os.fspath(path) for path in deviations]


def _listed(target: Target | Sequence[Target]) -> list[Target]:
    if isinstance(target, str | os.PathLike | ModuleType):
        return [target]
    listed = list(target)
    if not listed:
        raise UsageError("no target to verify: name a module, a file or a built-in candidate")
    return listed


def _name(target: Target) -> str:
    """Return the name by which the command line finds the target (UsageError)."""
    if not isinstance(target, ModuleType):
        return os.fspath(target)
    spec = target.__spec__
    if spec is not None and spec.name != "__main__" and sys.modules.get(spec.name) is target:
        return spec.name
    if target.__file__ is None:
        raise UsageError(f"module {target.__name__!r} has no file to import it from")
    return target.__file__


def _joined(ops: str | Sequence[str] | None) -> str:
    """Return the operations separated by commas, "" for all (UsageError)."""
    if ops is None or isinstance(ops, str):
        return ops or ""
    if not ops:
        raise UsageError("ops is empty: name an operation, or leave it out for all")
    return ",".join(ops)


def _answer(order: Order) -> Answer:
    """Carry out the order in a new process and return its answer (InfrastructureError)."""
    path = msgspec.json.encode([entry or str(Path.cwd()) for entry in sys.path]).decode()
    command = [sys.executable, "-c", _PROGRAM, path]
    stream = None if order.progress else subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stream, stderr=stream)
    try:
        _output, errors = process.communicate(msgspec.json.encode(order))
    except BaseException:  # an interrupt: the process may have got it too
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOPPING_S)
        process.kill()
        process.communicate()
        raise
    try:
        return msgspec.msgpack.decode(Path(order.answer).read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        said = (errors or b"").decode(errors="backslashreplace").strip().splitlines()
        reason = f": {said[-1]}" if said else ""
        raise InfrastructureError(
            f"the process that verifies ended with status {process.returncode}{reason}"
        ) from None


def encode_run(result: VerificationRun | AttnproofError) -> bytes:
    """Return the run, or the error that it ended with, as bytes for `decode_run`."""
    if isinstance(result, AttnproofError):
        return msgspec.msgpack.encode(Answer(exit_code=result.exit_code, error=str(result)))
    report = str(result.report or "")
    return msgspec.msgpack.encode(
        Answer(
            run=result.run,
            exit_code=result.exit_code,
            summary=result._summary,
            cards=result._cards,
            report=report,
        )
    )


def decode_run(data: bytes) -> VerificationRun:
    """Return the run that `encode_run` encoded; raise the error if it was one."""
    return _run_of(msgspec.msgpack.decode(data, type=Answer))


def _run_of(answer: Answer) -> VerificationRun:
    """Return the run of an answer; raise the error of one without a run."""
    if answer.run is None:
        raise (UsageError if answer.exit_code == USAGE else AttnproofError)(answer.error)
    report = Path(answer.report) if answer.report else None
    return VerificationRun(answer.run, answer.exit_code, report, answer.summary, answer.cards)
