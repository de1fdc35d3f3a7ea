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
    retention: int | None
    """Tokens of which a hit that is kept for any request is a multiple, 0 for none; None for A."""
    replay_drops: bool
    """True if a group of the cache drops a block."""

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

    def is_needed(self, block: int, num_prompt_tokens: int) -> bool:
        """True if a hit may need a full block: its window sees the last ones, or its state."""
        is_state = self.group.kind == "mamba"
        if self.group.kind not in ("window", "mamba") or (is_state and self.retention is None):
            return True
        needed = 1 if is_state else -(-(self.group.window - 1) // self.size) + self.drops
        between = self.alignment if self.retention is None else self.retention
        if between:
            each, index = between // self.size, block - self.drops
            if needed >= each or (index >= 0 and index % each >= each - needed):
                return True
        ends = [] if self.retention is None else self._replayed(num_prompt_tokens)
        return any(end - needed <= block - self.drops < end for end in ends)

    def _replayed(self, num_prompt_tokens: int) -> list[int]:
        """Return the blocks before each hit of a request with the same prompt, or a longer one."""
        lengths = [num_prompt_tokens - 1]
        if self.replay_drops:  # the hit of a longer one may end behind that of the same
            lengths.append(num_prompt_tokens)
        if self.group.kind == "mamba" and self.lookahead > 1:  # of the prompt's own hashes
            lengths.append(max(0, num_prompt_tokens - self.lookahead))
        aligned = [length // self.alignment * self.alignment for length in lengths]
        if self.replay_drops:
            aligned = [max(0, length - self.alignment) for length in aligned]
        return [length // self.size for length in aligned]


def rules_of(
    groups: Sequence[CacheGroup], lookahead: int, retention: int | None
) -> list[GroupRules]:
    """Return the rules of all groups of a cache."""
    alignment = lcm(*(group.block_size for group in groups))
    drafts = [] if lookahead else [group for group in groups if group.draft]
    # Groups that are alike are looked up together.
    drops = [any(replace(group, draft=True) == draft for draft in drafts) for group in groups]
    shared = len(groups) == 1, retention, any(drops)
    return [
        GroupRules(number, group, alignment, lookahead, drops[number], *shared)
        for number, group in enumerate(groups)
    ]
