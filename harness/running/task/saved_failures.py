"""Failing cases of earlier runs, kept in Hypothesis's example database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from hypothesis.database import DirectoryBasedExampleDatabase

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Sourced, encode
from attnproof.harness.model.files import read_regular
from attnproof.harness.running.cases import MOST_BYTES, CaseError, remembered_case
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.root_causes import RootCause


class Failures(DirectoryBasedExampleDatabase):
    """A database of which only regular files of a limited size are read."""

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Yield the values of a key; a repository may bring a link to a device or a pipe."""
        folder = self._key_path(key)
        with suppress(OSError):  # there is none
            for path in list(folder.iterdir()):
                with suppress(OSError):
                    yield read_regular(path, MOST_BYTES)


def key_of(operation: str, candidate: Candidate) -> bytes:
    """Return the database's key of the failing cases of an operation, candidate and lane."""
    key = f"attnproof/{operation}/{candidate.target}/{candidate.lane}"
    return key.encode("utf-8", "backslashreplace")  # a path may have bytes that are not UTF-8


class SavedFailures:
    """The failing cases of one operation, candidate and lane."""

    def __init__(self, examination: Examination, folder: str) -> None:
        """Open the database in `folder`, "" for none; save each root cause from now on."""
        self._examination = examination
        self._database = Failures(folder) if folder else None
        self._name = f"{examination.operation.name} [{examination.candidate.name}]"
        self._key = key_of(examination.operation.name, examination.candidate)
        self._earlier = list(self._database.fetch(self._key)) if self._database else []
        # At once, because the process may be killed before the end of the examination.
        examination.roots.recorded = self._save

    def cases(self) -> Iterator[Sourced]:
        """Yield the saved cases, smallest first.

        Delete those that pass now, and drop those that this version cannot run with a note.
        """
        if self._database is None:
            return
        for data in sorted(self._earlier, key=lambda data: (len(data), data)):
            try:
                sourced = Sourced(remembered_case(data), "corpus", "failed in an earlier run")
            except CaseError as error:
                self._examination.notes.append(f"{self._name}: dropped a {error}")
                self._database.delete(self._key, data)
                continue
            if not self._examination.check(sourced):
                self._database.delete(self._key, data)
            yield sourced

    def _save(self, root_cause: RootCause) -> None:
        if self._database is not None:
            self._database.save(self._key, encode(root_cause.smallest.case))
