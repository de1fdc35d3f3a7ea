"""Write new keys and values to a paged cache in host memory (SPEC.md section 8)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from .arrays import Array
from .cache_rows import CacheRows
from .compiled import compiled

_FP8_MAX = 448.0


@compiled
def slots_fit(slots: Array, num_slots: int) -> bool:
    """True if every slot is -1 or below `num_slots`."""
    least, highest = 0, -1
    for t in range(slots.shape[0]):
        least = min(least, slots[t])
        highest = max(highest, slots[t])
    return bool(least >= -1 and highest < num_slots)


def write_rows(
    rows: CacheRows, slots: Array, scales: tuple[torch.Tensor, torch.Tensor] | None
) -> None:
    """Write both halves of the cache, all on the CPU; `slots` are -1 or within the cache.

    With `scales` of keys and values they are converted to fp8 codes; None copies words.
    Bound by memory: each word is read once and written once.
    """
    key_strides = (*rows.key_strides, *rows.key_cache_strides)
    value_strides = (*rows.value_strides, *rows.value_cache_strides)
    key_cache, value_cache = rows.key_cache.numpy(), rows.value_cache.numpy()
    layout = (rows.sizes, rows.block_size)
    if scales is None:
        _copy(rows.key.numpy(), key_cache, slots, key_strides, *layout)
        _copy(rows.value.numpy(), value_cache, slots, value_strides, *layout)
        return
    key_codes, value_codes = (_codes_for(rows.key.dtype, scale) for scale in scales)
    _encode(_bits(rows.key), key_cache, slots, key_strides, *layout, key_codes)
    _encode(_bits(rows.value), value_cache, slots, value_strides, *layout, value_codes)


@compiled
def _copy(
    states: Array,
    cache: Array,
    slots: Array,
    strides: tuple[int, ...],
    sizes: tuple[int, int],
    block_size: int,
) -> None:
    n1, n0 = sizes
    token, from1, from0, block, slot, to1, to0 = strides
    for t in range(slots.shape[0]):
        if slots[t] < 0:
            continue
        column = slots[t] // block_size
        read, write = t * token, column * block + (slots[t] - column * block_size) * slot
        for h in range(n1):
            source, target = states[read + h * from1 :], cache[write + h * to1 :]
            if from0 == 1 and to0 == 1:
                for i in range(n0):
                    target[i] = source[i]
            else:
                for i in range(n0):
                    target[i * to0] = source[i * from0]


@compiled
def _encode(
    states: Array,
    cache: Array,
    slots: Array,
    strides: tuple[int, ...],
    sizes: tuple[int, int],
    block_size: int,
    codes: Array,
) -> None:
    n1, n0 = sizes
    token, from1, from0, block, slot, to1, to0 = strides
    for t in range(slots.shape[0]):
        if slots[t] < 0:
            continue
        column = slots[t] // block_size
        read, write = t * token, column * block + (slots[t] - column * block_size) * slot
        for h in range(n1):
            source, target = states[read + h * from1 :], cache[write + h * to1 :]
            for i in range(n0):
                target[i * to0] = codes[source[i * from0]]


def _bits(values: torch.Tensor) -> Array:
    """Return the bits of flat float16 or bfloat16 values as uint16, the index of `_codes`."""
    return values.view(torch.int16).numpy().view(np.uint16)


def _codes_for(dtype: torch.dtype, scale: torch.Tensor) -> Array:
    # Cached by the bits of the scale, since 0.0 equals -0.0 and NaN does not equal itself.
    return _codes(dtype, int(scale.view(torch.int32)))


@lru_cache(16)  # a model has few scales; making a table takes as long as writing 500 tokens
def _codes(dtype: torch.dtype, scale_bits: int) -> Array:
    """Return the fp8 code of each of the 65,536 numbers of `dtype`, divided by the scale.

    The index is the bits of the number.
    """
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    scale = torch.tensor(scale_bits, dtype=torch.int32).view(torch.float32)
    scaled = (numbers.float() / scale).clamp(-_FP8_MAX, _FP8_MAX)
    codes: Array = scaled.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return codes
