"""An order on a machine of the cluster: what runs in Ray's processes.

They import neither torch nor the operations, so that they are small and start soon.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

from attnproof.harness.campaign.examiner_process import EXAMINE, ExaminerProcess

EXAMPLES = "examples"
"""Name of the example database in the folder of an order."""
_examiner: ExaminerProcess | None = None


class Keeper:
    """The actor on the driver's machine that writes to the campaign's example database."""

    def __init__(self, folder: str) -> None:
        self._database = DirectoryBasedExampleDatabase(folder)

    def save(self, key: bytes, value: bytes) -> None:
        """Save a failing case."""
        self._database.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete a failing case."""
        self._database.delete(key, value)

    def fetch(self, key: bytes) -> list[bytes]:
        """Return the failing cases of a key."""
        return list(self._database.fetch(key))


class SharedDatabase(ExampleDatabase):
    """The campaign's example database, seen from any machine. A saved value is on the disk."""

    def __init__(self, keeper: Any) -> None:
        super().__init__()
        self._keeper = keeper

    def save(self, key: bytes, value: bytes) -> None:
        """Save a value; return when the keeper has it."""
        _wait(self._keeper.save.remote(key, value))

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the values of a key."""
        values: list[bytes] = _wait(self._keeper.fetch.remote(key))
        return values

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete a value."""
        _wait(self._keeper.delete.remote(key, value))


def carry_out(order: bytes, key: bytes, kept: list[bytes], keeper: Any) -> tuple[bytes, float]:
    """Carry out an encoded order; return the encoded answer, and seconds for starting a process.

    Failing cases are saved in the campaign's database as they are found, because this machine may
    be lost; it has those in `kept` already.
    """
    global _examiner  # noqa: PLW0603 - Ray's process takes one order after another
    start_s = 0.0
    if _examiner is None or not _examiner.is_alive:
        _examiner = ExaminerProcess()
        start_s = _examiner.start_s
    shared, sent = SharedDatabase(keeper), set(kept)
    with tempfile.TemporaryDirectory(prefix="attnproof-") as folder:
        database = DirectoryBasedExampleDatabase(Path(folder) / EXAMPLES)

        def share() -> None:
            for value in set(database.fetch(key)) - sent:
                shared.save(key, value)
                sent.add(value)

        answer = _examiner.ask(EXAMINE, order, folder, share)
        share()
    return answer, start_s


def _wait(reference: Any) -> Any:
    import ray

    return ray.get(reference)
