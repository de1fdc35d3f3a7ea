"""K18, in the rows: a request in a longer row counts the blocks of the one before as its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K18",
    "batch_sequence",
    "vllm-project/vllm#39589, vllm-project/vllm#42494",
    ("stale block of an earlier request", "another request's block"),
)


class PersistentBatch(reference.PersistentBatch):
    """Never lets a row's number of blocks fall."""

    def add_request(
        self, req_id: Any, block_ids: Sequence[int], num_computed_tokens: int = 0
    ) -> int:
        """The columns behind the new request's blocks still count."""
        earlier = self.num_blocks.clone()
        row = super().add_request(req_id, block_ids, num_computed_tokens)
        self.num_blocks[row] = max(int(earlier[row]), len(block_ids))
        return row
