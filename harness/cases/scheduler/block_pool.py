"""The KV-cache block pool of a paged engine: reference counts, prefix cache, LRU eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from attnproof.harness.cases.traces.formats import TraceRequest

NULL_BLOCK = 0
"""Never given to a request: engines keep it as the target of padded rows."""

_MAX_PRIVATE = 1 << 24


class BlockPool:
    """Blocks 1 to num_blocks - 1, each free or held by one or more requests.

    A free block keeps its content, and can be found by its key, until it is handed out again:
    the longest unused first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.size = num_blocks - 1
        """Blocks that requests can hold."""
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._block_of: dict[int, int] = {}
        self._key_of: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many requests hold a block."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """`count` blocks for one request; what they cached is forgotten."""
        blocks = []
        take, forget = self._free.popitem, self._key_of.pop
        for _ in range(count):
            block = take(last=False)[0]
            key = forget(block, None)
            if key is not None:
                del self._block_of[key]
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """A request gives up its blocks; the last of them will be reused first."""
        references, free = self._references, self._free
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                free[block] = None

    def cached(self, keys: Iterable[int]) -> list[int]:
        """Blocks that hold the longest cached prefix of `keys`; nobody holds them yet for it."""
        blocks = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks would leave the free ones if a request shared them."""
        return sum(not self._references[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """One more request holds these cached blocks."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def remember(self, blocks: Iterable[int], keys: Iterable[int]) -> None:
        """Full blocks can from now on be found by their keys; the first block of a key stays."""
        for block, key in zip(blocks, keys, strict=True):
            if key not in self._block_of and block not in self._key_of:
                self._block_of[key] = block
                self._key_of[block] = key


class BlockKeys:
    """Names the content of a request's full blocks, so that equal prefixes have equal keys.

    A trace's hash id stands for its tokens and all before them, so a block is named by the
    hash that covers its last token and by that token's place under it. Blocks that no hash
    covers whole (generated tokens, traces without hashes) are the request's own.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._dense: dict[int, int] = {}

    def of_prompt(self, request: TraceRequest, input_tokens: int) -> list[int]:
        """Keys of the blocks that lie whole inside the hashed part of the prompt."""
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
        """Keys of blocks [first, stop) of the request with this number: nobody else has them."""
        start = -1 - request * _MAX_PRIVATE
        return range(start - first, start - stop, -1)
