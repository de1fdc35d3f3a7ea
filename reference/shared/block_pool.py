"""Pool of cache blocks: references, cached prefixes, and the order of the free ones."""

from __future__ import annotations

from collections.abc import Iterable

from ..interface.kv_manager import CacheRequest

NULL = 0
"""Block in the place of those that no query sees any more; it is never written."""
Prefix = tuple[int, tuple[int, ...]]
"""Group, and the tokens up to the end of a block and its lookahead: its cached content."""


class BlockPool:
    """Blocks from 1 on, the requests that reference them, and the prefixes that they cache."""

    def __init__(self, num_blocks: int) -> None:
        self._queue = list(range(1, num_blocks))  # free blocks; the first is taken next
        self._references = [0] * num_blocks
        self._cached: dict[Prefix, list[int]] = {}  # blocks of equal content, oldest first
        self._prefix_of: dict[int, Prefix] = {}  # of each cached block
        self._writers: dict[int, CacheRequest] = {}  # who cached each block last

    @property
    def num_blocks(self) -> int:
        """Number of blocks, NULL among them."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Number of blocks without a reference; cached ones among them."""
        return len(self._queue)

    def having(self, prefix: Prefix) -> list[int]:
        """Return the blocks that cache a prefix, the oldest first."""
        return self._cached.get(prefix, [])

    def writer(self, block: int) -> CacheRequest | None:
        """Return the request that cached a block last, None if none has."""
        return self._writers.get(block)

    def num_unreferenced(self, tables: Iterable[Iterable[int]]) -> int:
        """Return how many blocks in the tables are free."""
        blocks = {block for table in tables for block in table if block != NULL}
        return sum(not self._references[block] for block in blocks)

    def adopt(self, blocks: Iterable[int]) -> None:
        """Add a reference to each cached block."""
        for block in blocks:
            if block != NULL:
                if not self._references[block]:
                    self._queue.remove(block)
                self._references[block] += 1

    def take(self, needed: Iterable[bool]) -> list[int]:
        """Return a block for each True, NULL for each False."""
        return [self._take() if each else NULL for each in needed]

    def _take(self) -> int:
        """Take a block from the head of the queue; what it cached is evicted."""
        block = self._queue.pop(0)
        self._references[block] = 1
        self.forget(block)
        return block

    def cache(self, block: int, prefix: Prefix, writer: CacheRequest) -> None:
        """Let requests find a block by its prefix."""
        self._cached.setdefault(prefix, []).append(block)
        self._prefix_of[block] = prefix
        self._writers[block] = writer

    def forget(self, block: int) -> None:
        """Let no request find a block any more."""
        prefix = self._prefix_of.pop(block, None)
        if prefix is not None:
            self._cached[prefix].remove(block)

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference of each block: cached ones join the queue's tail, others its head."""
        free = []
        for block in blocks:
            if block != NULL:
                self._references[block] -= 1
                if not self._references[block]:
                    free.append(block)
        cached = [block for block in free if block in self._prefix_of]
        others = [block for block in free if block not in self._prefix_of]
        self._queue = [*others, *self._queue, *cached]

    def reset(self) -> bool:
        """Forget all prefixes, and return True, unless a block has a reference."""
        if any(self._references):
            return False
        self._cached.clear()
        self._prefix_of.clear()
        self._writers.clear()
        return True
