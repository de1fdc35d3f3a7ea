"""Caches with offsets above 2**31 elements, of which only a few pages are ever touched.

They expose products of block ids, block sizes and strides that overflow 32 bits (K15).
Real caches of that size are on large GPUs; here reserved address space replaces them.
"""

from __future__ import annotations

import mmap
import resource
from math import prod
from typing import Final

import torch

from attnproof.harness.cases.memory.paged_cache import PagedCache, by_dimension

FAR_ELEMENTS: Final = 2**31
"""Minimum number of elements between the lower and the upper blocks of a far cache."""
_SPARE_BYTES: Final = 1 << 26
_MAP_NORESERVE: Final = 0x4000
"""Flag of Linux, missing from the mmap module of older Python versions."""
_memory: dict[str, torch.Tensor] = {}


def far_shift(cache: PagedCache) -> int:
    """Return the number of unused block ids between the lower and upper half of the blocks."""
    block = 2 * cache.block_size * cache.num_kv_heads * cache.head_size
    return -(-FAR_ELEMENTS // block)


def far_block(block: int, cache: PagedCache) -> int:
    """Return the id that a block of the cache has in its far cache."""
    return block + far_shift(cache) * (block >= cache.num_blocks // 2)


def far_cache(cache: PagedCache, device: str) -> torch.Tensor:
    """Return an uninitialised (2, num_blocks + shift, ...) cache, blocks outermost in memory.

    The other dimensions are in the order of the cache's layout, without its gap. All far caches
    of one device share the same memory in a process.
    """
    dtype: torch.dtype = getattr(torch, cache.dtype)
    far_bytes = FAR_ELEMENTS * dtype.itemsize
    # On the CPU an offset that wraps to a negative one lands in memory before the cache.
    start = far_bytes if device == "cpu" else 0
    memory = _reserved(device)[start : start + far_bytes + _SPARE_BYTES]
    order = cache.order_in_block
    shape = [cache.num_blocks + far_shift(cache), *(cache.shape[dim] for dim in order[1:])]
    return by_dimension(memory.view(dtype)[: prod(shape)].view(shape), order)


def near_blocks(far_blocks: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Copy the lower and the upper blocks of a far cache to a dense one."""
    lower = num_blocks // 2
    return torch.cat([far_blocks[:, :lower], far_blocks[:, lower - num_blocks :]], dim=1)


def fill_near_blocks(far_blocks: torch.Tensor, words: torch.Tensor) -> None:
    """Write `words` (2, num_blocks, ...) to the lower and the upper blocks of a far cache.

    The words have the size of the cache's elements.
    """
    lower = words.shape[1] // 2
    memory = far_blocks.view(words.dtype)
    memory[:, :lower] = words[:, :lower]
    memory[:, lower - words.shape[1] :] = words[:, lower:]


def _reserved(device: str) -> torch.Tensor:
    """Return the device's memory for far caches of two-byte elements, (n,) uint8.

    On the CPU this reserves addresses; a page is allocated when it is first written.
    """
    if device not in _memory:
        if device == "cpu":
            size = 4 * FAR_ELEMENTS + _SPARE_BYTES
            _allow(size)
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            _memory[device] = torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.uint8)
        else:
            size = 2 * FAR_ELEMENTS + _SPARE_BYTES
            _memory[device] = torch.empty(size, dtype=torch.uint8, device=device)
    return _memory[device]


def _allow(size: int) -> None:
    """Raise the process's address-space limit, which is meant for the candidate, by `size`."""
    limit, most = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        allowed = limit + size
        if most != resource.RLIM_INFINITY:
            allowed = min(allowed, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
