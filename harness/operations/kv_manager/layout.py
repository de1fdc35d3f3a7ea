"""Groups of a cache: what a request needs of each, and what a later one can hit.

The reference is never used: its rules are written again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm

from attnproof.harness.operations.kv_manager.memory import Key
from attnproof.reference import CacheGroup


class Layout:
    """Groups, and which tokens their keys and the hashes of their blocks depend on.

    In a mamba group the key of a position is the state behind its token. A block holds one.
    """

    def __init__(
        self,
        groups: Sequence[CacheGroup],
        lookahead: int,
        *,
        caching: bool,
        retention: int | None = None,
    ) -> None:
        """`lookahead` is the number of tokens behind a block that its hash covers."""
        self.groups = list(groups)
        self.sizes = [group.block_size for group in groups]
        self.alignment = lcm(*self.sizes)
        """Hits are multiples of it."""
        self.lookahead = lookahead
        self.caching = caching
        self._retention = retention
        drafts = [group for group in groups if group.draft and not lookahead]
        self.drops = [
            any(replace(each, draft=True) == draft for draft in drafts) for each in groups
        ]
        """True of groups in which a hit needs a cached block more: alike ones as the draft's."""

    def first_block(self, group: int, position: int) -> int:
        """Return the first block with a key that a query at the position sees."""
        return self._first_seen(group, position) // self.sizes[group]

    def seen(self, group: int, first: int, end: int) -> range:
        """Return the positions of keys before `end` that queries from `first` on see.

        Of states it is the last one.
        """
        return range(self._first_seen(group, end if self.has_states(group) else first), end)

    def _first_seen(self, group: int, position: int) -> int:
        each = self.groups[group]
        match each.kind:
            case "window":
                return max(0, position - each.window + 1)
            case "chunked":
                return position // each.window * each.window
            case "mamba":
                return max(0, position - 1)
        return 0

    def written(self, group: int, first: int, end: int, room: int) -> range:
        """Return the positions whose keys a step writes: of a state the last one, no drafts.

        A drafter writes those again whose later tokens were drafts.
        """
        if self.has_states(group):
            return range(end - 1, end)
        return range(max(0, first - max(0, self._ahead(group) - 1)), room)

    def _ahead(self, group: int) -> int:
        """Return the number of tokens behind a key's own on which it depends."""
        return max(1, self.lookahead) * self.groups[group].draft

    def slot(self, group: int, position: int) -> tuple[int, int]:
        """Return the index of a position's block in the table, and its place in the block."""
        block, offset = divmod(position, self.sizes[group])
        return block, 0 if self.has_states(group) else offset

    def missing(self, group: int, blocks: int, end: int, room: int) -> list[bool]:
        """Return the entries that a table of `blocks` lacks: True of blocks, False of NULL."""
        state = self.has_states(group)
        count = -(-(end if state else room) // self.sizes[group]) - blocks
        return [not state or i == count - 1 for i in range(count)]

    def has_states(self, group: int) -> bool:
        """True of a mamba group."""
        return self.groups[group].kind == "mamba"

    def hash_key(self, group: int, prefixes: list[int], block: int) -> Key:
        """Return what the hash of a full block names: tokens up to its end and lookahead."""
        return group, prefixes[(block + 1) * self.sizes[group] - 1 + self.lookahead]

    def key(self, group: int, prefixes: list[int], position: int) -> Key | None:
        """Return the key of a position, None of a draft's behind which no token is known.

        A drafter computes it of the tokens behind the position too.
        """
        position += self._ahead(group)
        return (group, prefixes[position]) if position < len(prefixes) else None

    def is_volatile(self, group: int) -> bool:
        """True if the last key of a block depends on a token that the hash does not cover."""
        return self.groups[group].draft and not self.lookahead

    def hit_limit(self, tokens: int, most: int) -> int:
        """Return the tokens within which a request of `tokens` tokens looks up a dropped block.

        `most` are those of the hit.
        """
        return most if len(self.groups) == 1 else tokens

    def num_full(self, group: int, computed: int, tokens: int) -> int:
        """Return the full blocks of a request with `tokens` tokens, `computed` ones."""
        size, drop = self.sizes[group], self.drops[group]
        limit = known = min(computed, tokens)
        if len(self.groups) > 1:
            limit -= limit % self.alignment
            limit = min(known, limit + size * (drop and limit > 0))
        return min(limit, tokens - self.lookahead) // size if self.caching else 0

    def is_cached(self, group: int, block: int, prompt: int) -> bool:
        """True if a hit that is kept of a request with `prompt` tokens can need a full block.

        Hits are kept at multiples of the alignment, with a retention interval of that; and then
        where a request with the same prompt, or a longer one, can resume.
        """
        size, drop, sparse = self.sizes[group], self.drops[group], self._retention is not None
        kind = self.groups[group].kind
        if kind not in ("window", "mamba") or (kind == "mamba" and not sparse):
            return True
        step = self.alignment if self._retention is None else self._retention
        # The next end of a hit behind the block, and the block that such a hit sees first.
        ends = [-(-(block + 1 - drop) * size // step) * step] if step and block >= drop else []
        ends += self._replayed(prompt) if sparse else []
        if sparse and kind == "mamba" and self.lookahead > 1:
            # Before its outputs are known, fewer blocks of the prompt are hashed.
            ends.append(max(0, prompt - self.lookahead) // self.alignment * self.alignment)
        seen = -(-(self.groups[group].window - 1) // size) if kind == "window" else 1
        dense = step > 0 and (seen + drop) * size >= step
        return dense or any(end - seen * size <= block * size < end + drop * size for end in ends)

    def _replayed(self, prompt: int) -> list[int]:
        """Return the tokens of a hit of the same prompt, and with a drafter of a longer one."""
        unit = self.alignment
        if not any(self.drops):
            return [(prompt - 1) // unit * unit]
        return [max(0, tokens // unit * unit - unit) for tokens in (prompt - 1, prompt)]
