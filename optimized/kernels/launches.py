"""Launches for which every kernel is compiled ahead of time, without a GPU.

The machine code depends on dtypes, flags and tile sizes, and on whether keys, values and
caches are aligned (`versions`). Each entry calls the function that launches on a GPU too, so
it compiles exactly that version. Its tensors are on torch's device "meta": they have shapes
and dtypes and no memory. `tools/kernel_resources.py` compiles the launches and records their
resources. Sizes are those of an engine step; a dtype, a flag or a stride that changes the
kernel is a launch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from ..host.block_runs import block_runs
from ..host.cache_rows import cache_rows
from ..host.paged_attention import Attention
from .cache_write import write_rows_on_device
from .causal_conv1d import write_pointers
from .drafter_launches import drafter_launches
from .fast_prefill import count_sampled_on_device
from .kernel_blocks import write_kernel_blocks
from .kv_cache import copy_runs_on_device
from .local_attention import gather_virtual
from .local_lengths import write_local_lengths
from .paged_attention_launch import attend_on_device
from .pages_launches import page_launches
from .rank_slot_mapping import write_rank_slots
from .runner_launches import runner_launches
from .slot_mapping import write_slots
from .state_blocks import write_state_blocks
from .ubatch import slice_rows_on_device

Launch = Callable[[], object]
_ONE_EACH: Final = ("prefill", "decodes")
ON_ONE_TARGET: Final = frozenset(
    (
        "prefill of float16",
        "prefill, pages of 48",
        "prefill, not aligned",
        "few queries each",
        *(f"{what}, heads of {size}" for what in _ONE_EACH for size in (64, 72, 256)),
        *(f"decodes in parts, heads of {size}" for size in (64, 256)),
    )
)
"""Launches compiled for sm_90 only, because each takes a second or more."""
_I32: Final = torch.int32
_I64: Final = torch.int64
_BF16: Final = torch.bfloat16
_FP8: Final = torch.float8_e4m3fn
_REQUESTS: Final = 64
_COLUMNS: Final = 500
_TOKENS: Final = 4000


def launches() -> dict[str, Launch]:
    """Return every launch by its name, such as "slot mapping, int64"."""
    return {
        **_slot_mapping(),
        **_context_parallel(),
        **_kernel_blocks(),
        **_local_attention(),
        **_ubatch(),
        **_small(),
        **drafter_launches(),
        **runner_launches(),
        **page_launches(),
        **_cache_write(),
        **_attention(),
    }


def _meta(*shape: int, dtype: torch.dtype = _I32, strided: bool = False) -> torch.Tensor:
    """Return a tensor without memory; if strided, every second element of a larger one."""
    if strided:
        whole = torch.empty([2 * size for size in shape], dtype=dtype, device="meta")
        return whole[tuple(slice(None, None, 2) for _ in shape)]
    return torch.empty(shape, dtype=dtype, device="meta")


def _unaligned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without memory, whose address is that of the second element of another."""
    return torch.empty(math.prod(shape) + 1, dtype=dtype, device="meta")[1:].view(shape)


def _slot_mapping() -> dict[str, Launch]:
    def launch(
        dtype: torch.dtype = _I32, *, masked: bool = False, strided: bool = False, size: int = 16
    ) -> Launch:
        starts = _meta(_REQUESTS + 1, dtype=dtype, strided=strided)
        computed = _meta(_REQUESTS, dtype=dtype, strided=strided)
        table = _meta(_REQUESTS, _COLUMNS, strided=strided)
        out = _meta(_TOKENS, dtype=_I64, strided=strided)
        first_kept = computed if masked else None
        return lambda: write_slots(starts, computed, table, size, first_kept, out)

    return {
        "slot mapping, int32": launch(),
        "slot mapping, int64": launch(_I64),
        "slot mapping, masked": launch(masked=True),
        "slot mapping, strided": launch(masked=True, strided=True),
        "slot mapping, blocks of 48": launch(size=48),
    }


def _context_parallel() -> dict[str, Launch]:
    def slots(
        dtype: torch.dtype = _I32, *, masked: bool = False, strided: bool = False, ranks: int = 4
    ) -> Launch:
        starts = _meta(_REQUESTS + 1, dtype=dtype, strided=strided)
        computed = _meta(_REQUESTS, dtype=dtype, strided=strided)
        table = _meta(_REQUESTS, _COLUMNS, strided=strided)
        out = _meta(_TOKENS, dtype=_I64, strided=strided)
        first_kept = computed if masked else None
        return lambda: write_rank_slots(starts, computed, table, 16, first_kept, out, (ranks, 1, 8))

    def lengths(dtype: torch.dtype = _I32, *, strided: bool = False, ranks: int = 4) -> Launch:
        seq_lens = _meta(_REQUESTS, dtype=dtype, strided=strided)
        out = _meta(_REQUESTS, strided=strided)
        return lambda: write_local_lengths(seq_lens, _REQUESTS, (ranks, 1, 8), out)

    return {
        "slots of a rank, int32": slots(),
        "slots of a rank, int64": slots(_I64),
        "slots of a rank, masked": slots(masked=True),
        "slots of a rank, strided": slots(masked=True, strided=True),
        "lengths of a rank, int32": lengths(),
        "lengths of a rank, int64": lengths(_I64),
        "lengths of a rank, strided": lengths(strided=True),
        "slots of a rank, three ranks": slots(ranks=3),
        "lengths of a rank, three ranks": lengths(ranks=3),
    }


def _kernel_blocks() -> dict[str, Launch]:
    def kernel_blocks(
        parts: int, dtype: torch.dtype = _I32, *, step: int = 0, strided: bool = False
    ) -> Launch:
        table = _meta(_REQUESTS, _COLUMNS, dtype=dtype, strided=strided)
        result = _meta(_REQUESTS, _COLUMNS * parts, dtype=dtype, strided=strided)
        return lambda: write_kernel_blocks(table, parts, step or parts, result)

    def states(dtype: torch.dtype = _I32, *, strided: bool = False) -> Launch:
        table = _meta(_REQUESTS, _COLUMNS, strided=strided)
        lengths = _meta(_REQUESTS, dtype=dtype, strided=strided)
        return lambda: write_state_blocks(table, lengths, 16, _meta(_REQUESTS, 3))

    return {
        "kernel blocks, four of a block": kernel_blocks(4),
        "kernel blocks, three of a block": kernel_blocks(3),
        "kernel blocks, int64": kernel_blocks(4, _I64),
        "kernel blocks, strided": kernel_blocks(4, strided=True),
        "kernel blocks of one column": lambda: write_kernel_blocks(
            _meta(_REQUESTS, 1), 1, 7, _meta(_REQUESTS, 1)
        ),
        "state blocks, int32": states(),
        "state blocks, int64 lengths": states(_I64),
        "state blocks, strided": states(strided=True),
    }


def _local_attention() -> dict[str, Launch]:
    def launch(dtype: torch.dtype = _I32, *, columns: int = 512, strided: bool = False) -> Launch:
        virtual = 2 * _REQUESTS
        packed = _meta(4 * virtual + 1, dtype=dtype)
        table = _meta(_REQUESTS, 2048, strided=strided)
        starts, lengths = _meta(virtual + 1, dtype=dtype), _meta(virtual, dtype=dtype)
        virtual_table = _meta(virtual, columns)
        return lambda: gather_virtual(packed, table, starts, lengths, virtual_table)

    return {
        "local attention, int32": launch(),
        "local attention, int64": launch(_I64),
        "local attention, one column": launch(columns=1),
        "local attention, 2048 columns": launch(columns=2048),
        "local attention, strided": launch(strided=True),
    }


def _ubatch() -> dict[str, Launch]:
    def launch(slices: int, dtype: torch.dtype = _I32, *, strided: bool = False) -> Launch:
        starts = _meta(_REQUESTS + 1, dtype=dtype, strided=strided)
        lengths = _meta(_REQUESTS, dtype=dtype, strided=strided)
        bounds = [(0, _REQUESTS // slices, 0, _TOKENS // slices)] * slices
        return lambda: slice_rows_on_device(starts, lengths, bounds)

    return {
        "two ubatches, int32": launch(2),
        "two ubatches, int64": launch(2, _I64),
        "two ubatches, strided": launch(2, strided=True),
        "three ubatches, int32": launch(3),
        "three ubatches, int64": launch(3, _I64),
        "three ubatches, strided": launch(3, strided=True),
    }


def _small() -> dict[str, Launch]:
    """Return the launches of kernels with few versions."""

    def sampled(dtype: torch.dtype, *, strided: bool = False) -> Launch:
        starts = _meta(_REQUESTS + 1, dtype=dtype, strided=strided)
        indices = _meta(_REQUESTS, dtype=dtype, strided=strided)
        counted = _meta(_REQUESTS + 2, dtype=dtype)
        return lambda: count_sampled_on_device(starts, indices, _TOKENS, counted)

    def blocks(source: torch.Tensor, target: torch.Tensor) -> Launch:
        pairs = _meta(_REQUESTS, 2, dtype=_I64)
        return lambda: copy_runs_on_device(block_runs(source, target), pairs)

    cache = _meta(2, 100, 16, 8, 128, dtype=torch.bfloat16)
    heads_first = _meta(2, 100, 8, 16, 128, dtype=torch.bfloat16).transpose(2, 3)
    bytewise = _meta(2, 100, 16, 8, 128, dtype=torch.uint8)[..., ::2]
    unaligned = _unaligned(2, 100, 16, 8, 128, dtype=torch.bfloat16)
    return {
        "sampled tokens, int32": sampled(_I32),
        "sampled tokens, int64": sampled(_I64),
        "sampled tokens, strided": sampled(_I32, strided=True),
        "block copy": blocks(cache, cache),
        "block copy between layouts": blocks(cache, heads_first),
        "block copy of single bytes": blocks(bytewise, bytewise),
        "block copy, not aligned": blocks(unaligned, unaligned),
        "convolution programs": lambda: write_pointers(
            _meta(_REQUESTS + 1, dtype=_I64), _meta(2, 2048)
        ),
    }


def _cache_write() -> dict[str, Launch]:
    def launch(
        cache_dtype: torch.dtype = _BF16,
        *,
        head_size: int = 128,
        heads_first: bool = False,
        aligned: bool = True,
    ) -> Launch:
        make = _meta if aligned else _unaligned
        key, value = (make(_TOKENS, 8, head_size, dtype=_BF16) for _ in range(2))
        cache = _meta(2, 100, 16, 8, head_size, dtype=cache_dtype)
        if heads_first:
            cache = _meta(2, 100, 8, 16, head_size, dtype=cache_dtype).transpose(2, 3)
        scale = _meta(1, dtype=torch.float32)
        scales = (scale, scale) if cache_dtype == _FP8 else None
        key_cache, value_cache = cache.unbind()
        rows = cache_rows(key, value, key_cache, value_cache)
        slots = _meta(_TOKENS, dtype=_I64)
        return lambda: write_rows_on_device(rows, slots, scales)

    return {
        "cache write": launch(),
        "cache write, heads of 40": launch(head_size=40),
        "cache write, heads first": launch(heads_first=True),
        "cache write, not aligned": launch(aligned=False),
        "cache write, fp8": launch(_FP8),
        "cache write, fp8, heads of 40": launch(_FP8, head_size=40),
        "cache write, fp8, heads first": launch(_FP8, heads_first=True),
    }


def _attention() -> dict[str, Launch]:
    """Return the launches of attention; decodes also with their keys divided into parts."""
    by_name = {
        "prefill of float16": _attend(2048, dtype=torch.float16),
        "prefill with a soft cap": _attend(2048, soft_cap=30.0),
        "prefill, fp8": _attend(2048, cache_dtype=_FP8),
        "prefill, pages of 48": _attend(2048, block_size=48),
        "prefill, not aligned": _attend(2048, aligned=False),
        "few queries each": _attend(4, rows=_REQUESTS),
        "decodes in parts with a soft cap": _attend(rows=1, soft_cap=30.0),
        "decodes in parts, fp8": _attend(rows=1, cache_dtype=_FP8),
    }
    for head_size in (64, 72, 128, 256):
        by_name[f"prefill, heads of {head_size}"] = _attend(2048, head_size=head_size)
        by_name[f"decodes, heads of {head_size}"] = _attend(rows=1024, head_size=head_size)
        by_name[f"decodes in parts, heads of {head_size}"] = _attend(rows=1, head_size=head_size)
    return by_name


def _attend(
    queries: int = 0,
    *,
    rows: int = 4,
    head_size: int = 128,
    dtype: torch.dtype = _BF16,
    cache_dtype: torch.dtype | None = None,
    block_size: int = 16,
    soft_cap: float | None = None,
    aligned: bool = True,
) -> Launch:
    """Return a launch with 32 query heads and 8 kv heads, `queries` a request, 0 for decodes."""
    tokens = rows * (queries or 1)
    query, out = (_meta(tokens, 32, head_size, dtype=dtype) for _ in range(2))
    make = _meta if aligned else _unaligned
    cache = make(2, 100, block_size, 8, head_size, dtype=cache_dtype or dtype)
    scale = _meta(1, dtype=torch.float32) if cache_dtype else None
    key_cache, value_cache = cache.unbind()
    attention = Attention(
        query,
        key_cache,
        value_cache,
        _meta(rows + 1) if queries else None,
        _meta(rows),
        _meta(rows, _COLUMNS),
        head_size**-0.5,
        queries or 1,
        8192,
        None,
        soft_cap,
        scale,
        scale,
        out,
    )
    return lambda: attend_on_device(attention)
