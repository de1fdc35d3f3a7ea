"""Memory of more than 2**31 elements of which only a few pages are ever touched.

For K15: products of block ids, block sizes and strides that do not fit 32 bits. A real
cache has such offsets on every large GPU; here address space stands for it.
"""

from __future__ import annotations

import mmap
import resource
from typing import Final

import torch

from attnproof.harness.cases.memory.paged_cache import PagedCache

FAR_ELEMENTS: Final = 2**31
"""Elements between the first and the last blocks of a far cache, or a few more."""
_SPARE_BYTES: Final = 1 << 26
_MAP_NORESERVE: Final = 0x4000
"""Linux's; older versions of Python do not name it."""
_memory: dict[str, torch.Tensor] = {}


def far_shift(cache: PagedCache) -> int:
    """Block ids that lie between the lower and the upper half of a far cache's blocks."""
    block = 2 * cache.block_size * cache.num_kv_heads * cache.head_size
    return -(-FAR_ELEMENTS // block)


def far_block(block: int, cache: PagedCache) -> int:
    """Where block `block` of the cache is when it lies far."""
    return block + far_shift(cache) * (block >= cache.num_blocks // 2)


def far_cache(cache: PagedCache, device: str) -> torch.Tensor:
    """Uninitialised (2, num_blocks + shift, ...) cache, a block's keys and values together.

    On the CPU as much memory lies before it as behind, so that an offset which wraps
    comes down where it does no harm. There is one such memory in a process: whoever
    asks again gets the same.
    """
    dtype: torch.dtype = getattr(torch, cache.dtype)
    far_bytes = FAR_ELEMENTS * dtype.itemsize
    start = far_bytes if device == "cpu" else 0
    memory = _reserved(device)[start : start + far_bytes + _SPARE_BYTES]
    shape = (cache.num_blocks + far_shift(cache), 2, *cache.shape[2:])
    wanted = 1
    for size in shape:
        wanted *= size
    elements: torch.Tensor = memory.view(dtype)[:wanted].view(shape)
    return elements.transpose(0, 1)


def near_blocks(far: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """A copy of the lower and the upper blocks of a far cache, next to each other."""
    lower = num_blocks // 2
    return torch.cat([far[:, :lower], far[:, lower - num_blocks :]], dim=1)


def fill_near_blocks(far: torch.Tensor, words: torch.Tensor) -> None:
    """Write `words` (2, num_blocks, ...), of the cache's element size, to those blocks."""
    lower = words.shape[1] // 2
    memory = far.view(words.dtype)
    memory[:, :lower] = words[:, :lower]
    memory[:, lower - words.shape[1] :] = words[:, lower:]


def _reserved(device: str) -> torch.Tensor:
    """Bytes for two-byte elements: on the CPU addresses only, pages come when they are written."""
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
    """These addresses are the harness's and do not count against a candidate's limit."""
    limit, most = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        allowed = limit + size
        if most != resource.RLIM_INFINITY:
            allowed = min(allowed, most)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, most))
