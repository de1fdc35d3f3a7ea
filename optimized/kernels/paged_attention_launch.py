"""Launch the paged attention kernels: grids, scratch memory and compile-time constants."""

from __future__ import annotations

import math
from typing import Final

import torch

from ..host.paged_attention import Attention
from .launcher import cdiv, launch
from .paged_attention import attend_kernel, merge_kernel
from .paged_attention_tiles import (
    MAX_SPLITS,
    SPLITS_AT_ONCE,
    Tiles,
    constants_of,
    splits_for,
    target_of,
    tiles_for,
)
from .versions import alignment_of, form_for, word_layout

_LOG2_E: Final = math.log2(math.e)
_NO_WINDOW: Final = 2**31 - 1
_LEAST_ALIGNMENT: Final = 8
"""Elements that are loaded at once at least: those of a head of 8 in fp8."""


def attend_on_device(a: Attention) -> None:
    """Fill `out` for the tokens of all requests, by one launch or two, without a sync."""
    num_reqs, kv_heads = a.seq_lens.shape[0], a.key_cache.shape[2]
    if not num_reqs or not a.query.numel() or not a.max_query_len:
        return
    group = a.query.shape[1] // kv_heads
    most_rows = group * a.max_query_len
    data = query, key_cache, value_cache, out = a.query, a.key_cache, a.value_cache, a.out
    strides = query.stride(), key_cache.stride(), value_cache.stride(), out.stride()
    run = query.shape[2]
    layout = word_layout(alignment_of(data), run, *strides, least=_LEAST_ALIGNMENT)
    target = target_of(a.query.device)
    tiles = tiles_for(a.query.shape[2], most_rows, target, aligned=layout[0] > 1)
    tiles_each = cdiv(most_rows, tiles.rows)
    if a.query_start_loc is None or tiles_each == 1:
        programs, first_step = num_reqs * tiles_each, 0
    else:
        programs = a.query.shape[0] * group // tiles.rows + num_reqs
        first_step = 1 << num_reqs.bit_length() >> 1
    splits = splits_for(programs * kv_heads, _most_keys(a), tiles, a.query.device)
    _attend(a, tiles, layout, (programs, kv_heads, splits), first_step, tiles_each)


def _most_keys(a: Attention) -> int:
    """Return an upper bound of the keys that a tile of queries sees."""
    if a.sliding_window is None:
        return a.max_seq_len
    return min(a.max_seq_len, a.sliding_window + a.max_query_len)


def _attend(
    a: Attention,
    tiles: Tiles,
    layout: tuple[int, tuple[int, ...], tuple[int, ...]],
    grid: tuple[int, int, int],
    first_step: int,
    tiles_each: int,
) -> None:
    aligned, outer, inner = layout
    tokens, heads, head_size = a.query.shape
    num_reqs, splits = a.seq_lens.shape[0], grid[2]
    block_size, kv_heads = a.key_cache.shape[1:3]
    key_cache, value_cache = _bits(a.key_cache), _bits(a.value_cache)
    starts = a.seq_lens if a.query_start_loc is None else a.query_start_loc
    partial = partial_sums = a.out
    if splits > 1:
        parts = tokens * heads * splits
        partial = torch.empty(parts * (head_size + 1), dtype=torch.float32, device=a.query.device)
        partial_sums = partial[parts * head_size :]
    score_scale, soft_cap = _scales(a)
    page_bits = block_size & (block_size - 1) == 0
    launch(
        form_for(attend_kernel, aligned),
        a.query.device,
        grid,
        a.query,
        *outer[:2],
        inner[0],
        key_cache,
        *outer[2:5],
        value_cache,
        *outer[5:8],
        starts,
        starts.stride(0),
        a.seq_lens,
        a.seq_lens.stride(0),
        a.block_table,
        *a.block_table.stride(),
        *((a.k_scale, a.v_scale) if key_cache.dtype == torch.uint8 else (None, None)),
        a.out,
        *outer[8:],
        inner[3],
        partial,
        partial_sums,
        num_reqs,
        first_step,
        tiles_each,
        heads // kv_heads,
        block_size.bit_length() - 1 if page_bits else block_size,
        score_scale,
        soft_cap,
        min(a.sliding_window or _NO_WINDOW, _NO_WINDOW),
        None if head_size == tiles.head else head_size // aligned,
        ONE_EACH=a.query_start_loc is None,
        PAGE_BITS=page_bits,
        SOFT_CAP=bool(a.logits_soft_cap),
        SPLIT=splits > 1,
        DENSE=inner[0] == inner[3] == 1,
        **constants_of(head_size, tiles, aligned),
    )
    if splits > 1:
        launch(
            merge_kernel,
            a.query.device,
            (tokens, heads),
            partial,
            partial_sums,
            starts,
            starts.stride(0),
            num_reqs,
            a.out,
            *a.out.stride(),
            splits,
            ONE_EACH=a.query_start_loc is None,
            HEAD=head_size,
            HEAD_TILE=tiles.head,
            SPLITS=MAX_SPLITS,
            AT_ONCE=SPLITS_AT_ONCE,
        )


def _bits(cache: torch.Tensor) -> torch.Tensor:
    """Return the cache, an fp8 cache viewed as uint8 bits."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


def _scales(a: Attention) -> tuple[float, float]:
    """Return the factor of the scores and the factor of their tanh (0 without a cap).

    Both are for exponentials with base 2.
    """
    if not a.logits_soft_cap:
        return a.scale * _LOG2_E, 0.0
    return a.scale / a.logits_soft_cap, a.logits_soft_cap * _LOG2_E
