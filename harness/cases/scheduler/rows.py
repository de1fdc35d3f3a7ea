"""Order of the requests in a persistent batch, whose rows outlive engine steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


class Rows:
    """Rows of a persistent batch: a request keeps its row while it is scheduled.

    A new request takes the lowest row that has become free; what is still free afterwards is
    closed by moving the last request there.
    """

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._scheduled: list[Any] = []

    def update(self, scheduled: Sequence[Any], resumed: Collection[Any] = ()) -> list[Any]:
        """Return the scheduled requests in the order of their rows.

        New requests get their rows before those that resume after a preemption.
        """
        wanted = list(scheduled)
        if wanted == self._scheduled:
            return self._rows
        self._scheduled = wanted
        kept, present = set(wanted), set(self._rows)
        rows: list[Any] = [request if request in kept else None for request in self._rows]
        added = [request for request in wanted if request not in present]
        added.sort(key=lambda request: request in resumed)
        holes = [row for row, request in enumerate(rows) if request is None]
        for row, request in zip(holes, added, strict=False):
            rows[row] = request
        rows += added[len(holes) :]
        for row in holes[len(added) :]:
            while rows and rows[-1] is None:
                rows.pop()
            if row < len(rows):
                rows[row] = rows.pop()
        self._rows = rows
        return rows
