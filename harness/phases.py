"""CPU time of a run by phase and process, for `attnproof verify --profile`.

Each process adds up its seconds in a file of its own that is mapped into memory: the process of
a candidate is killed, and can say nothing at its end.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import IntEnum, auto
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Phase(IntEnum):
    """A kind of work in a run, to which the CPU time of a process is added."""

    START = 0
    """Imports, forks, and the end of processes."""
    DRAW = auto()
    """Choice of cases, and whatever else a task does between them."""
    LAY_OUT = auto()
    """Tensors and objects of a call."""
    SEND = auto()
    CALL = auto()
    """Calls of the candidate, with the guards around its allocations."""
    OBSERVE = auto()
    """Reading of the results of a call, and of its changes to the arguments."""
    REFERENCE = auto()
    RECEIVE = auto()
    JUDGE = auto()
    LEDGER = auto()
    SHRINK = auto()
    REPORT = auto()


class Process(IntEnum):
    """The processes of a run, from the outer to the inner ones."""

    PARENT = 0
    TASK = auto()
    LAUNCHER = auto()
    WORKER = auto()


class _Sums:
    """CPU seconds of this process by phase; a phase inside another one is not part of it."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder = folder
        path = folder / f"{process.name}-{os.getpid()}-{time.monotonic_ns()}"
        with path.open("wb+") as file:
            file.truncate(8 * len(Phase))
            self._seconds = memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
        self._phases = [Phase.START]
        self._counted_s = 0.0
        """CPU time of the process that is counted."""

    def enter(self, phase: Phase) -> None:
        self.count()
        self._phases.append(phase)

    def leave(self) -> None:
        self.count()
        self._phases.pop()

    def count(self) -> None:
        """Add the CPU time since the last call to the current phase."""
        now = time.process_time()
        self._seconds[self._phases[-1]] += now - self._counted_s
        self._counted_s = now


class _During(AbstractContextManager[None]):
    def __init__(self, sums: _Sums, phase: Phase) -> None:
        self._sums, self._phase = sums, phase

    def __enter__(self) -> None:
        self._sums.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        self._sums.leave()


class _Current:
    """The sums of this process, None if nothing is counted."""

    sums: _Sums | None = None


_NOTHING = nullcontext()


@contextmanager
def profiled() -> Iterator[Callable[[], str]]:
    """Count the time of this process and of those that it forks; yield a function to the table.

    Its lines are phases, its columns processes, its numbers CPU seconds up to the call.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        _Current.sums = _Sums(folder, Process.PARENT)
        try:
            yield lambda: _table(folder)
        finally:
            _Current.sums = None


def enter_process(process: Process) -> None:
    """Count the time of this process, just forked, as its own, if that of its parent is counted."""
    if _Current.sums is not None:
        _Current.sums = _Sums(_Current.sums.folder, process)


def during(phase: Phase) -> AbstractContextManager[None]:
    """Return a context manager whose block is part of the phase."""
    return _NOTHING if _Current.sums is None else _During(_Current.sums, phase)


def counted(phase: Phase) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator for functions whose calls are part of the phase."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if _Current.sums is None:
                return function(*args, **kwargs)
            with _During(_Current.sums, phase):
                return function(*args, **kwargs)

        return call

    return decorate


def _table(folder: Path) -> str:
    if _Current.sums is not None:
        _Current.sums.count()
    seconds: defaultdict[tuple[Process, Phase], float] = defaultdict(float)
    number: Counter[Process] = Counter()
    for path in folder.iterdir():
        process = Process[path.name.partition("-")[0]]
        number[process] += 1
        # A process that is killed at its begin leaves an empty file.
        for phase, spent in zip(Phase, array("d", path.read_bytes()), strict=False):
            seconds[process, phase] += spent
    names = [f"{number[kind]} {kind.name.lower()}{'s' * (number[kind] != 1)}" for kind in Process]
    lines = [["CPU seconds", *names, "all"]]
    rows: list[tuple[str, list[Phase]]] = [
        *((phase.name.lower().replace("_", " "), [phase]) for phase in Phase),
        ("all", [*Phase]),
    ]
    for name, phases in rows:
        row = [sum(seconds[process, phase] for phase in phases) for process in Process]
        lines.append([name, *(f"{cpu_s:.2f}" for cpu_s in (*row, sum(row)))])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])])
        for name, *cells in lines
    )
