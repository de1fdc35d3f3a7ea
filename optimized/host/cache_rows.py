"""Reduce the layouts of new keys and values and of the cache to runs of wide words."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

import torch

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WIDER: Final = (8, 4)


class CacheRows(NamedTuple):
    """New tokens and both halves of the cache as words; strides are in words.

    The tensors are flat for loops on the host, from their first word to their last; a kernel
    needs their addresses only. The strides address (T', n1, n0) words in keys and values, and
    (n1, n0) words in a slot of the caches.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    key_strides: tuple[int, ...]
    """Strides of token, n1 and n0."""
    value_strides: tuple[int, ...]
    key_cache_strides: tuple[int, ...]
    """Strides of block, slot, n1 and n0."""
    value_cache_strides: tuple[int, ...]
    sizes: tuple[int, int]
    """(n1, n0): number of heads and words of a head, or 1 and the words of all heads."""
    block_size: int
    """Slots of a block; 1 if all slots have one stride, so no block index is computed."""
    num_slots: int


def cache_rows(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    *,
    flat: bool = True,
) -> CacheRows:
    """Return the four tensors as words, flat if they cannot be viewed otherwise.

    Heads are merged into one run if all four tensors allow it, and elements are combined
    into the widest words that fit. If the dtypes of cache and keys differ (fp8), the cache
    is viewed as bytes and the keys keep their dtype. Tensors must not be empty. No element
    is read.
    """
    same = key.dtype == key_cache.dtype
    tensors = (key, value, key_cache, value_cache)
    plan = _plan(
        key_cache.shape,
        key.stride(),
        value.stride(),
        key_cache.stride(),
        value_cache.stride(),
        key.element_size() if same else 0,
        start_of(tensors),
    )
    if flat or not plan.viewed:
        key, value, key_cache, value_cache = map(_flat, tensors)
    if same:
        word = _INTEGERS[plan.word]
        key, value = key.view(word), value.view(word)
    else:
        word = torch.uint8
    key_cache, value_cache = key_cache.view(word), value_cache.view(word)
    key_strides, value_strides, key_cache_strides, value_cache_strides = plan.strides
    return CacheRows(
        key,
        value,
        key_cache,
        value_cache,
        key_strides,
        value_strides,
        key_cache_strides,
        value_cache_strides,
        plan.sizes,
        plan.block_size,
        plan.num_slots,
    )


def start_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return a number modulo 8 that a word divides if it divides all addresses and offsets."""
    start = 0
    for tensor in tensors:
        # PyTorch views memory as words only if they divide the storage offset too.
        start |= tensor.data_ptr() | int(tensor.storage_offset()) * tensor.element_size()
    return start % 8


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory from the first to the last element of a tensor that is not empty."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    extent = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        extent += (size - 1) * stride
    return tensor.as_strided((extent,), (1,))


class _Plan(NamedTuple):
    """Layout that depends only on shapes, strides and alignment of the four tensors."""

    strides: tuple[tuple[int, ...], ...]
    """Strides of keys, values, key cache and value cache, in words."""
    sizes: tuple[int, int]
    block_size: int
    num_slots: int
    word: int
    """Size of a word in bytes, 0 for fp8."""
    viewed: bool
    """True if PyTorch views each tensor as words in its own shape."""


@lru_cache(64)  # the layers of a model have few shapes
def _plan(
    shape: torch.Size,
    key: tuple[int, ...],
    value: tuple[int, ...],
    key_cache: tuple[int, ...],
    value_cache: tuple[int, ...],
    itemsize: int,
    start: int,
) -> _Plan:
    num_blocks, block_size, *row = shape
    outer = [key[:1], value[:1], key_cache[:2], value_cache[:2]]
    sizes, inner = _merged(row, [key[1:], value[1:], key_cache[2:], value_cache[2:]])
    caches = outer[2:]
    if all(block == block_size * slot for block, slot in caches) or num_blocks == 1:
        outer[2:] = [(slot, slot) for _, slot in caches]
        slots_a_block = 1
    else:
        slots_a_block = block_size
    strides = [(*major, *near) for major, near in zip(outer, inner, strict=True)]
    word = itemsize and _widest(sizes[1], strides, itemsize, start)
    viewed = True
    if word > itemsize:
        ratio = word // itemsize
        outside = (*key[:-1], *value[:-1], *key_cache[:-1], *value_cache[:-1])
        viewed = not any(number % ratio for number in (shape[-1], *outside))
        sizes = (sizes[0], sizes[1] // ratio)
        strides = [(*(stride // ratio for stride in major), 1) for *major, _ in strides]
    return _Plan(tuple(strides), sizes, slots_a_block, num_blocks * block_size, word, viewed)


def _merged(
    sizes: list[int], strides: list[tuple[int, ...]]
) -> tuple[tuple[int, int], list[tuple[int, ...]]]:
    """Return (heads, head size) and its strides, or (1, heads * head size) if they merge."""
    heads, head_size = sizes
    if head_size == 1:
        return (1, heads), [(0, head) for head, _ in strides]
    if heads == 1 or all(head == head_size * element for head, element in strides):
        return (1, heads * head_size), [(0, element) for _, element in strides]
    return (heads, head_size), strides


def _widest(
    run: int,
    strides: list[tuple[int, ...]],
    itemsize: int,
    start: int,
) -> int:
    """Return the widest word, in bytes, that divides every run, stride and start."""
    if any(near != 1 for *_, near in strides):
        return itemsize
    lengths = [
        start,
        itemsize * run,
        *(itemsize * stride for *major, _ in strides for stride in major),
    ]
    return next((word for word in _WIDER if not any(n % word for n in lengths)), itemsize)
