"""Record which lines of a candidate's files each case runs.

A mutant is judged only by the cases that run the statement that it changes.
"""

from __future__ import annotations

import bisect
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from attnproof.harness.model.call_kinds import CallKind
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.operation import Operation

Places = npt.NDArray[np.int64]
"""Numbers of lines, counted through all files of a candidate, ascending."""


class Reach:
    """Lines of a candidate's files that run, in one process and in its forks."""

    def __init__(self, root: Path) -> None:
        """Number the lines of the file `root`, or of all Python files below the folder."""
        self._first: dict[str, int] = {}
        """Number of line 0 of each file."""
        size = 0
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            self._first[str(file)] = size
            size += len(read_regular(file).splitlines()) + 1
        self._size = size
        self._ran: mmap.mmap | None = None

    def recorded(self, operation: Operation) -> Operation:
        """Return the operation with calls that record their lines, here and in forks."""
        self._ran = mmap.mmap(-1, max(self._size, 1))
        return replace(operation, call=_RecordedCall(operation.call, self))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the lines that this thread runs meanwhile."""
        # Not in the harness: every frame is several times slower while there is a trace function.
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)

    def take(self) -> Places:
        """Return the lines that ran since the last call."""
        assert self._ran is not None
        places = np.flatnonzero(np.frombuffer(self._ran[:], dtype=np.uint8))
        self._ran[:] = bytes(len(self._ran))
        return places

    def has_run(self, places: Places, file: str, lines: tuple[int, int]) -> bool:
        """True if one of the lines of a file, from the first to the last, is among the places."""
        first, last = (self._first[file] + line for line in lines)
        return bool(np.searchsorted(places, first) < np.searchsorted(places, last, side="right"))

    def by_file(self, places: Places) -> dict[str, set[int]]:
        """Return the lines that have these numbers, by file."""
        lines_by_file: dict[str, set[int]] = {}
        files, starts = list(self._first), list(self._first.values())
        for place in places.tolist():
            number = bisect.bisect_right(starts, place) - 1
            lines_by_file.setdefault(files[number], set()).add(place - starts[number])
        return lines_by_file

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        first, ran = self._first.get(frame.f_code.co_filename), self._ran
        if first is None or ran is None:
            return None

        def note(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line" and frame.f_lineno:
                ran[first + frame.f_lineno] = 1
            return note

        return note


class _RecordedCall:
    """A kind of call whose lines are recorded while a candidate or the reference runs."""

    def __init__(self, call: CallKind, reach: Reach) -> None:
        self._call = call
        self._reach = reach

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def run(self, *arguments: Any) -> Any:
        """Call the function."""
        with self._reach.recording():
            return self._call.run(*arguments)

    def outputs(self, *arguments: Any) -> Any:
        """Return the output fields of a result, whose properties may be code of the candidate."""
        with self._reach.recording():
            return self._call.outputs(*arguments)
