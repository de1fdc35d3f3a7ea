"""The KV-cache block pool of a paged engine: reference counts, prefix cache, LRU eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from attnproof.harness.cases.traces.formats import TraceRequest

NULL_BLOCK = 0
"""Never given to a request: engines keep it as the target of padded rows."""

_MAX_PRIVATE = 1 << 24
"""Key range reserved for the private blocks of one request."""


class BlockPool:
    """Blocks 1 to num_blocks - 1, each free or held by one or more requests.

    A free block keeps its content and key until it is allocated again. The block that has
    been free longest is allocated first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.size = num_blocks - 1
        """Number of blocks that requests can hold."""
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._blocks_of: dict[int, dict[int, None]] = {}
        self._key_of: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Number of free blocks, cached ones included."""
        return len(self._free)

    def references(self, block: int) -> int:
        """Return the number of requests that hold a block."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks to one request and forget the keys of their old content."""
        blocks = []
        take, forget = self._free.popitem, self._key_of.pop
        for _ in range(count):
            block = take(last=False)[0]
            key = forget(block, None)
            if key is not None:
                holders = self._blocks_of[key]
                del holders[block]
                if not holders:
                    del self._blocks_of[key]
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int], first: int | None = None) -> None:
        """Release the blocks of one request; the last of them is reused first.

        Blocks from index `first` on are reused before all others, None for no such blocks.
        """
        references, free = self._references, self._free
        front = []
        for index in reversed(range(len(blocks))):
            block = blocks[index]
            references[block] -= 1
            if references[block]:
                continue
            free[block] = None
            if first is not None and index >= first:
                front.append(block)
        for block in reversed(front):
            free.move_to_end(block, last=False)

    def find_prefix(self, keys: Iterable[int]) -> list[int]:
        """Return the blocks that hold the longest cached prefix of `keys`, without sharing them."""
        blocks = []
        for key in keys:
            holders = self._blocks_of.get(key)
            if holders is None:
                break
            blocks.append(next(iter(holders)))
        return blocks

    def count_free(self, blocks: Iterable[int]) -> int:
        """Return the number of free blocks among `blocks`."""
        return sum(not self._references[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a request to the holders of cached blocks."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def register(self, blocks: Iterable[int], keys: Iterable[int]) -> None:
        """Register full blocks under their keys, after those that have the same content."""
        for block, key in zip(blocks, keys, strict=True):
            if block not in self._key_of:
                self._blocks_of.setdefault(key, {})[block] = None
                self._key_of[block] = key


class BlockKeys:
    """Keys for the content of full blocks: equal prefixes have equal keys.

    A trace's hash id stands for its tokens and all before them. A block's key combines the
    hash that covers its last token with that token's index under the hash. Blocks without
    such a hash (generated tokens, traces without hashes) have keys of their request only.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._dense: dict[int, int] = {}

    def of_prompt(self, request: TraceRequest, input_tokens: int) -> list[int]:
        """Return the keys of the blocks that are completely inside the prompt's hashed part."""
        width = request.tokens_per_hash
        covered = min(input_tokens, len(request.prefix_hashes) * width)
        count = covered // self._block_size
        if not count:
            return []
        dense = self._dense
        hashes = np.array([dense.setdefault(h, len(dense)) for h in request.prefix_hashes])
        last = np.arange(1, count + 1) * self._block_size - 1
        keys: list[int] = (hashes[last // width] * width + last % width).tolist()
        return keys

    @staticmethod
    def own(request: int, first: int, stop: int) -> range:
        """Return keys of blocks [first, stop) of a request that no other request has."""
        start = -1 - request * _MAX_PRIVATE
        return range(start - first, start - stop, -1)
