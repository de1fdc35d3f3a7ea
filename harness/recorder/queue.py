"""A queue from the engine's thread to the writer's, bounded by bytes, that never waits."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class BoundedQueue(Generic[_Item]):
    """Items up to a number of bytes; more are dropped and counted.

    Without a lock: one thread offers, one takes, and each counter is written by one of them. The
    taker polls, because to wake it costs the engine's thread more than the rest of a step.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._items: deque[tuple[_Item, int]] = deque()
        self._offered_bytes = 0
        self._taken_bytes = 0
        self.dropped = 0

    def offer(self, item: _Item, num_bytes: int) -> bool:
        """Add an item, or drop it if the queue is full; return False if it was dropped."""
        if self._offered_bytes - self._taken_bytes + num_bytes > self._most_bytes:
            self.dropped += 1
            return False
        self._offered_bytes += num_bytes
        self._items.append((item, num_bytes))
        return True

    def take(self) -> _Item | None:
        """Return the oldest item, None if there is none."""
        if not self._items:
            return None
        item, num_bytes = self._items.popleft()
        self._taken_bytes += num_bytes
        return item
