"""Failing cases of earlier runs, kept in Hypothesis's example database."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hypothesis.database import DirectoryBasedExampleDatabase

from attnproof.harness.model.case import Sourced, decode, encode
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.task.examination import Examination


class SavedFailures:
    """The failing cases of one operation, candidate and lane."""

    def __init__(self, examination: Examination, folder: str) -> None:
        """Open the database in `folder`, "" for none."""
        self._examination = examination
        self._database = DirectoryBasedExampleDatabase(folder) if folder else None
        pair = f"{examination.operation.name}/{examination.candidate.target}"
        key = f"attnproof/{pair}/{examination.candidate.lane}"
        # A path may have bytes that are not UTF-8.
        self._key = key.encode("utf-8", "backslashreplace")

    def cases(self) -> Iterator[Sourced]:
        """Yield the saved cases, smallest first; delete those that pass or are not valid now."""
        if self._database is None:
            return
        for data in sorted(self._database.fetch(self._key), key=lambda data: (len(data), data)):
            sourced = self._valid(data)
            if sourced is None or not self._examination.check(sourced):
                self._database.delete(self._key, data)
            if sourced is not None:
                yield sourced

    def _valid(self, data: bytes) -> Sourced | None:
        """Return the case, None if another version of the operation saved it."""
        try:
            case = decode(data)
        except msgspec.MsgspecError:
            return None
        if problem_of(case):
            return None
        return Sourced(case, "corpus", "failed in an earlier run")

    def save(self) -> None:
        """Save the smallest case of every root cause."""
        if self._database is not None:
            for found in self._examination.found.values():
                self._database.save(self._key, encode(found.smallest.case))
