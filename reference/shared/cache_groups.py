"""Rules of a group of layers: which blocks of a table exist, are seen, and may be hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm

from ..interface.kv_manager import CacheGroup, CacheRequest
from .block_pool import Prefix


@dataclass(frozen=True)
class GroupRules:
    """Rules of one group of a cache."""

    number: int
    group: CacheGroup
    alignment: int
    """Tokens of which hits are a multiple."""
    lookahead: int
    """Tokens behind a block that its hash covers."""
    drops: bool
    """True if a hit needs a cached block more, which is computed again."""
    is_alone: bool
    """True if the cache has no other group."""

    @property
    def size(self) -> int:
        """Tokens per block."""
        return self.group.block_size

    def prefix(self, request: CacheRequest, block: int) -> Prefix:
        """Return the content of a block of a request."""
        end = (block + 1) * self.size + self.lookahead
        return self.number, tuple(request.token_ids[:end])

    def num_skipped(self, computed: int) -> int:
        """Return how many leading blocks no query from position `computed` on sees."""
        first = 0  # key that the query sees, or the last token of the state that it needs
        if self.group.kind == "window":
            first = max(0, computed - self.group.window + 1)
        elif self.group.kind == "chunked":
            first = computed // self.group.window * self.group.window
        elif self.group.kind == "mamba":
            first = max(0, computed - 1)
        return first // self.size

    def missing(self, blocks: int, end: int, room: int) -> list[bool]:
        """Return the entries that a table of `blocks` lacks: True of blocks, False of NULL.

        A step leaves one state, that behind its last token: drafts have none.
        """
        count = -(-(end if self.group.kind == "mamba" else room) // self.size) - blocks
        return [self.group.kind != "mamba" or i == count - 1 for i in range(count)]

    def num_hashed(self, tokens: int) -> int:
        """Return how many full blocks are followed by enough known tokens."""
        return max(0, tokens - self.lookahead) // self.size

    def num_full(self, request: CacheRequest, tokens: int) -> int:
        """Return the number of blocks that a hit may need, `tokens` being computed."""
        limit = known = min(tokens, len(request.token_ids))
        if not self.is_alone:
            limit = known // self.alignment * self.alignment
            if self.drops and limit:
                limit = min(known, limit + self.size)
        return min(limit // self.size, self.num_hashed(len(request.token_ids)))

    def is_needed(self, block: int) -> bool:
        """True if a hit may need a full block: in small blocks a window sees the last ones only."""
        if self.group.kind != "window":
            return True
        # A hit ends at a multiple of the alignment, and needs the blocks that its window sees.
        needed = -(-(self.group.window - 1) // self.size) + self.drops
        each = self.alignment // self.size
        return needed >= each or (
            block >= self.drops and (block - self.drops) % each >= each - needed
        )


def rules_of(groups: Sequence[CacheGroup], lookahead: int) -> list[GroupRules]:
    """Return the rules of all groups of a cache."""
    alignment = lcm(*(group.block_size for group in groups))
    drafts = [] if lookahead else [group for group in groups if group.draft]
    return [
        GroupRules(
            number,
            group,
            alignment,
            lookahead,
            # Groups that are alike are looked up together.
            any(replace(group, draft=True) == draft for draft in drafts),
            len(groups) == 1,
        )
        for number, group in enumerate(groups)
    ]
