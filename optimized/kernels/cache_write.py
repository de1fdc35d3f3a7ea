"""Write the keys and values of new tokens to the paged cache."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..host.cache_rows import CacheRows
from .fp8 import to_fp8
from .launcher import cdiv, launch
from .versions import alignment_of, data_kernel, form_for, power_of_two, word_layout

_TILE = 1024
"""Words of keys, and of values, per program; twice as many elements if they become fp8."""
_SHORTEST = 16
"""Minimum of words of a token per program; of single elements, four times as many. It limits the
number of compiled versions."""


@triton.jit
def _widened(x):
    """Convert float16 or bfloat16 to float32."""
    # Shifts the bits: the conversion in Triton's interpreter loses subnormal bfloat16.
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:  # noqa: RET505 - the compiler wants both
        return x.to(tl.float32)


@data_kernel("key", "value", "key_cache", "value_cache")
def _cache_write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    k_scale,
    v_scale,
    key_token,
    key1,
    value_token,
    value1,
    key_cache_block,
    key_cache_slot,
    key_cache1,
    value_cache_block,
    value_cache_slot,
    value_cache1,
    key0,
    value0,
    key_cache0,
    value_cache0,
    slot_stride,
    num_tokens,
    num_slots,
    block_size,
    n0,
    FP8: tl.constexpr,
    PAGED: tl.constexpr,
    DENSE: tl.constexpr,
    ALIGNED: tl.constexpr,
    TOKENS: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Program (b, h, p): words [p * PIECE, (p + 1) * PIECE) of run h of TOKENS tokens.

    The tokens are [b * TOKENS, (b + 1) * TOKENS); both keys and values are written. Offsets
    have 64 bits, since a cache may have more than 2**31 elements. A slot outside the cache
    writes nothing: the host has not checked it. All slots have one stride unless PAGED; with
    DENSE all innermost strides are 1. Other strides and n0 count ALIGNED words, so that the
    compiler can prove their alignment. Bound by memory, each word read once and written once;
    loads of keys and values overlap.
    """
    if DENSE:
        key0, value0, key_cache0, value_cache0 = 1, 1, 1, 1
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    in_batch = token < num_tokens
    slot = tl.load(slot_mapping + token * slot_stride, mask=in_batch, other=-1).to(tl.int64)
    word = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    written = (in_batch & (slot >= 0) & (slot < num_slots))[:, None] & (word < n0 * ALIGNED)[
        None, :
    ]

    h, i = tl.program_id(1).to(tl.int64), word.to(tl.int64)
    new_key = tl.load(
        key + ((token * key_token + h * key1) * ALIGNED)[:, None] + (i * key0)[None, :],
        mask=written,
    )
    new_value = tl.load(
        value + ((token * value_token + h * value1) * ALIGNED)[:, None] + (i * value0)[None, :],
        mask=written,
    )
    if FP8:
        # IEEE division: Triton's default division can be wrong in the last bit.
        new_key = to_fp8(tl.div_rn(_widened(new_key), tl.load(k_scale)))
        new_value = to_fp8(tl.div_rn(_widened(new_value), tl.load(v_scale)))

    if PAGED:
        block = slot // block_size
        inside = slot - block * block_size
        key_row = block * key_cache_block + inside * key_cache_slot
        value_row = block * value_cache_block + inside * value_cache_slot
    else:
        key_row, value_row = slot * key_cache_block, slot * value_cache_block
    key_row = (key_row + h * key_cache1) * ALIGNED
    value_row = (value_row + h * value_cache1) * ALIGNED
    tl.store(key_cache + key_row[:, None] + (i * key_cache0)[None, :], new_key, mask=written)
    tl.store(
        value_cache + value_row[:, None] + (i * value_cache0)[None, :], new_value, mask=written
    )


def write_rows_on_device(
    rows: CacheRows,
    slot_mapping: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    """Write both halves of the cache by one launch, without a sync.

    With `scales` of keys and values they are converted to fp8 codes; None copies words.
    """
    n1, n0 = rows.sizes
    num_tokens = slot_mapping.shape[0]
    if not num_tokens * n1 * n0:
        return
    tile = 2 * _TILE if scales else _TILE
    aligned, outer, inner = word_layout(alignment_of(rows[:4]), n0, *rows[4:8])
    shortest = 4 * _SHORTEST if scales or aligned == 1 else _SHORTEST
    piece = max(shortest, min(_TILE, power_of_two(n0)))
    tokens, pieces = tile // piece, cdiv(n0, piece)
    launch(
        form_for(_cache_write_kernel, aligned),
        slot_mapping.device,
        (cdiv(num_tokens, tokens), n1, pieces),
        *rows[:4],
        slot_mapping,
        *(scales or (slot_mapping, slot_mapping)),
        *outer,
        *inner,
        slot_mapping.stride(0),
        num_tokens,
        rows.num_slots,
        rows.block_size,
        n0 // aligned,
        FP8=scales is not None,
        PAGED=rows.block_size != 1,
        DENSE=inner == (1, 1, 1, 1),
        ALIGNED=aligned,
        TOKENS=tokens,
        PIECE=piece,
    )
