"""Paged caches in guarded memory: any layout, any dtype, every element another value.

Section 8's cache, (2, num_blocks, block_size, num_kv_heads, head_size): keys, then values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import Piece

LAYOUTS = ("NHD", "HND", "blocks first", "heads first")
"""How the elements lie; the first two are the names of `get_kv_cache_layout`."""
_ORDERS = ((0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 2, 3, 4), (0, 3, 1, 2, 4))
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "uint8", "float32")
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32}
"""Integers by size in bytes: numpy has none of the floats that caches are made of."""


class PagedCache(NamedTuple):
    """One cache in numbers."""

    name: str
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    layout: int
    """Index into LAYOUTS."""
    gap: int = 0
    """Elements of somebody else behind each innermost run."""
    on_cpu: bool = False
    """Whether it stays on the CPU whatever the device of the call."""

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements."""
        return (2, self.num_blocks, self.block_size, self.num_kv_heads, self.head_size)

    def piece(self, pattern: int) -> Piece:
        """The cache as its elements lie in memory, as integers of its element size."""
        return self.piece_of(self.values(pattern))

    def piece_of(self, values: np.ndarray) -> Piece:
        """The same with these elements, (2, num_blocks, block_size, num_kv_heads, head_size)."""
        order = _ORDERS[self.layout]
        shape = [self.shape[dim] for dim in order]
        strides = [1]
        for size in shape[:0:-1]:
            strides.insert(0, strides[0] * (size + (self.gap if len(strides) == 1 else 0)))
        return Piece(self.name, values.transpose(order), self.on_cpu, tuple(strides))

    def words(self, memory: torch.Tensor) -> torch.Tensor:
        """What `piece` became, in the order of the cache's dimensions, still as integers."""
        return memory.permute([_ORDERS[self.layout].index(dim) for dim in range(5)])

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """What `piece` became, as the cache."""
        dtype: Any = getattr(torch, self.dtype)
        return self.words(memory).view(dtype)

    def values(self, pattern: int) -> np.ndarray:
        """Distinct as far as the dtype has room, other ones for each name and pattern."""
        words = _WORDS[getattr(torch, self.dtype).itemsize]
        flat = np.arange(np.prod(self.shape), dtype=np.uint64).reshape(self.shape)
        seed = sum(map(ord, self.name)) * 7919 + 104729 * pattern
        # An odd factor permutes the residues; the second term sets blocks of 256 apart.
        mixed = flat * np.uint64(40503) + (flat >> np.uint64(8)) * np.uint64(89) + np.uint64(seed)
        values: np.ndarray = mixed.astype(words)
        return values
