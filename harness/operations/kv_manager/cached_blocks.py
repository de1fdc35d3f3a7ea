"""Blocks that a later request can hit, and the order in which they may be evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from attnproof.harness.operations.kv_manager.memory import Key
from attnproof.harness.operations.kv_manager.wrong_answer import WrongAnswerError


class _Freed(NamedTuple):
    """When a block was freed, and from where."""

    time: int
    group: int
    column: int
    """Index in its table."""

    def is_before(self, other: _Freed) -> bool:
        """True if it goes first; blocks of two groups that one step frees have no order."""
        if self.time != other.time:
            return self.time < other.time
        return self.group == other.group and self.column > other.column


class CachedBlocks:
    """Content of each cached block, and what is known of the free ones among them."""

    def __init__(self) -> None:
        self.time = 0
        """Number of the step."""
        self.keys: dict[int, Key] = {}
        """Content that the hash of each cached block stands for (`Layout.hash_key`), by block."""
        self._freed: dict[int, _Freed] = {}

    @property
    def num_free(self) -> int:
        """Number of free cached blocks."""
        return len(self._freed)

    def having(self, key: Key) -> list[int]:
        """Return the blocks whose hash is that of the key."""
        return [block for block, other in self.keys.items() if other == key]

    def has_equal(self, blocks: Iterable[int]) -> bool:
        """True if one of the blocks has the hash of another cached one."""
        counts = Counter(self.keys.values())
        return any(counts[self.keys[block]] > 1 for block in blocks if block in self.keys)

    def free(self, block: int, group: int, column: int) -> None:
        """Count a block as free that no table names any more, if it is cached."""
        if block in self.keys:
            self._freed[block] = _Freed(self.time, group, column)

    def adopt(self, blocks: Iterable[int]) -> None:
        """Count blocks as in use."""
        for block in blocks:
            self._freed.pop(block, None)

    def evict(self, new: list[int], needed: int) -> None:
        """Forget what new blocks held: at most `needed` evictions, and in order."""
        evicted = {block: self._freed.pop(block) for block in new if block in self._freed}
        for block in new:
            self.keys.pop(block, None)
        if len(evicted) > max(0, needed):
            text = "evict a cached block although another one is free"
            raise WrongAnswerError("new ids", text, f"blocks {list(evicted)}")
        for block, freed in evicted.items():
            for other, stays in self._freed.items():
                if stays.is_before(freed):
                    text = "evict a cached block before one that was freed earlier"
                    raise WrongAnswerError("new ids", text, f"block {block} before block {other}")
