"""K28, erratum E12: an exception inside a capture leaves the state in capturing mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K28",
    "CommonAttentionState",
    "erratum E12",
    ("state stays in capturing mode",),
)


class CommonAttentionState(reference.CommonAttentionState):
    """Tidies up behind the `yield`, which an exception does not reach."""

    @contextmanager
    def graph_capture(self, max_batch_size: int) -> Iterator[None]:
        """As the right one, but for an exception and what follows it."""
        self._is_graph_capturing = False
        capturing = dict(vars(self))
        try:
            with super().graph_capture(max_batch_size):
                capturing = dict(vars(self))
                yield
        except Exception:
            vars(self).update(capturing)
            raise
