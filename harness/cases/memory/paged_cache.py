"""Paged caches in guarded memory, of any layout and dtype.

The shape is that of SPEC.md section 8, (2, num_blocks, block_size, num_kv_heads,
head_size): keys, then values. A word is an integer of an element's size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import Piece

LAYOUTS = ("NHD", "HND", "blocks first", "heads first")
"""Memory layouts; the first two are the names of `get_kv_cache_layout`."""
_ORDERS = ((0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 2, 3, 4), (0, 3, 1, 2, 4))
"""Dimensions from the outermost to the innermost in memory, by layout."""
DTYPES = ("float16", "bfloat16", "float8_e4m3fn", "uint8", "float32")
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32}
"""Dtype of a word by size in bytes; numpy lacks most float dtypes of caches."""


def by_dimension(memory: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """View memory whose dimensions are in this order as a tensor with the order 0 to 4."""
    return memory.permute([order.index(dim) for dim in range(5)])


class PagedCache(NamedTuple):
    """Shape, dtype and layout of one cache."""

    name: str
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    layout: int
    """Index into LAYOUTS."""
    gap: int = 0
    """Elements after each run of the innermost dimension that belong to no cache."""
    on_cpu: bool = False
    """True if the cache stays on the CPU for any device of the call."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (2, num_blocks, block_size, num_kv_heads, head_size)."""
        return (2, self.num_blocks, self.block_size, self.num_kv_heads, self.head_size)

    def piece(self, pattern: int) -> Piece:
        """Return the cache as a piece of an arena, filled with `values(pattern)`."""
        return self.piece_of(self.values(pattern))

    def piece_of(self, values: np.ndarray) -> Piece:
        """Return the cache as a piece of an arena, filled with the words `values` (`shape`)."""
        order = _ORDERS[self.layout]
        shape = [self.shape[dim] for dim in order]
        strides = [1]
        for size in shape[:0:-1]:
            strides.insert(0, strides[0] * (size + (self.gap if len(strides) == 1 else 0)))
        return Piece(self.name, values.transpose(order), self.on_cpu, tuple(strides))

    @property
    def order_in_block(self) -> tuple[int, ...]:
        """Dimensions from the outermost in memory, that of the blocks before the layout's others.

        Caches with the blocks outermost can have unused memory between two blocks.
        """
        return (1, *(dim for dim in _ORDERS[self.layout] if dim != 1))

    def words(self, memory: torch.Tensor) -> torch.Tensor:
        """View the memory of `piece` as words of shape `shape`."""
        return by_dimension(memory, _ORDERS[self.layout])

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """View the memory of `piece` as the cache, in its dtype."""
        dtype: Any = getattr(torch, self.dtype)
        return self.words(memory).view(dtype)

    def values(self, pattern: int) -> np.ndarray:
        """Return words of shape `shape`, distinct as far as the dtype allows.

        They depend on the cache's name and the pattern.
        """
        seed = sum(map(ord, self.name)) * 7919 + 104729 * pattern
        return _values(self.shape, _WORDS[getattr(torch, self.dtype).itemsize], seed).copy()


@lru_cache(maxsize=2)  # a timing makes one cache hundreds of times
def _values(shape: tuple[int, ...], words: Any, seed: int) -> np.ndarray:
    """Return words of the shape, which the caller must copy."""
    flat = np.arange(np.prod(shape), dtype=np.uint64).reshape(shape)
    # An odd factor permutes the residues; the second term makes blocks of 256 differ.
    mixed = flat * np.uint64(40503) + (flat >> np.uint64(8)) * np.uint64(89) + np.uint64(seed)
    values: np.ndarray = mixed.astype(words)
    return values
