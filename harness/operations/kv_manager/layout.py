"""Groups of a cache: what a request needs of each, and what a later one can hit.

The reference is never used: its rules are written again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnproof.harness.operations.kv_manager.memory import Key
from attnproof.reference import CacheGroup


class Layout:
    """Groups, and which tokens their keys and the hashes of their blocks depend on."""

    def __init__(self, groups: Sequence[CacheGroup], lookahead: int) -> None:
        """`lookahead` is the number of tokens behind a block that its hash covers."""
        self.groups = list(groups)
        self.block_size = groups[0].block_size
        self.lookahead = lookahead
        drafts = [group for group in groups if group.draft and not lookahead]
        self.drops = [
            any(replace(each, draft=True) == draft for draft in drafts) for each in groups
        ]
        """True of groups in which a hit needs a cached block more: alike ones as the draft's."""

    def first_block(self, group: int, position: int) -> int:
        """Return the first block with a key that a query at the position sees."""
        return self.first_key(group, position) // self.block_size

    def first_key(self, group: int, position: int) -> int:
        """Return the position of the first key that a query at the position sees."""
        each = self.groups[group]
        return max(0, position - each.window + 1) if each.kind == "window" else 0

    def hash_key(self, group: int, prefixes: list[int], block: int) -> Key:
        """Return what the hash of a full block names: tokens up to its end and lookahead."""
        return group, prefixes[(block + 1) * self.block_size - 1 + self.lookahead]

    def key(self, group: int, prefixes: list[int], position: int) -> Key | None:
        """Return the key of a position, None of a draft's behind which no token is known.

        A drafter computes it of the token behind the position too.
        """
        position += self.groups[group].draft
        return (group, prefixes[position]) if position < len(prefixes) else None

    def is_volatile(self, group: int) -> bool:
        """True if the last key of a block depends on a token that the hash does not cover."""
        return self.groups[group].draft and not self.lookahead

    def hit_limit(self, tokens: int) -> int:
        """Return the tokens within which a request of `tokens` tokens looks up a dropped block."""
        return tokens - (len(self.groups) == 1)
