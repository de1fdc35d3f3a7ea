"""Write the slots of prefixes and new tokens to the pool of requests' slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .row_sums import tokens_before
from .versions import metadata_kernel

_BLOCK = 1024
"""Positions of a request that a program writes at a time."""
_ROWS = 128
"""Earlier requests that a program sums up at a time."""
_MOST_PROGRAMS = 512
"""Programs of a launch beyond which a request gets no second one."""


@metadata_kernel
def _write_rows_kernel(
    table,
    table_row_stride,
    table_column_stride,
    pool,
    pool_stride,
    prefixes,
    prefix_lens,
    prefix_lens_stride,
    seq_lens,
    seq_lens_stride,
    new,
    new_stride,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (r, b): tiles b, b + B, b + 2B, … of request r's row, B programs a request.

    `prefixes` (R,) int64 holds the address of each prefix's slots. Bound by the
    latency of the R / ROWS tiles of lengths that each program sums up, then by memory: each
    slot is read and written once, adjacent ones by adjacent threads.
    """
    r = tl.program_id(0)
    begin = tokens_before(prefix_lens, prefix_lens_stride, seq_lens, seq_lens_stride, r, ROWS)
    row = tl.load(pool + r * pool_stride).to(tl.int64)
    prefix = tl.load(prefix_lens + r * prefix_lens_stride).to(tl.int64)
    end = tl.load(seq_lens + r * seq_lens_stride).to(tl.int64)
    cached = tl.load(prefixes + r).to(tl.pointer_type(tl.int64))
    for tile in range(tl.program_id(1), tl.cdiv(end, BLOCK), tl.num_programs(1)):
        i = tile * BLOCK + tl.arange(0, BLOCK)
        old = tl.load(cached + i, mask=i < prefix, other=0)
        is_new = (i >= prefix) & (i < end)
        slot = tl.load(new + (begin + i - prefix) * new_stride, mask=is_new, other=0)
        place = table + row * table_row_stride + i * table_column_stride
        tl.store(place, tl.where(is_new, slot, old), mask=i < end)


def write_token_rows(
    table: torch.Tensor,
    pool: torch.Tensor,
    prefixes: torch.Tensor,
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    new: torch.Tensor,
) -> None:
    """Write the rows `pool` (R,) of the table by one launch, without a sync."""
    rows, width = seq_lens.shape[0], table.shape[1]
    if not rows or not width:
        return
    of_each = min(cdiv(width, _BLOCK), _MOST_PROGRAMS // rows) or 1
    launch(
        _write_rows_kernel,
        table.device,
        (rows, of_each),
        table,
        *table.stride(),
        pool,
        pool.stride(0),
        prefixes,
        prefix_lens,
        prefix_lens.stride(0),
        seq_lens,
        seq_lens.stride(0),
        new,
        new.stride(0),
        BLOCK=_BLOCK,
        ROWS=_ROWS,
    )
