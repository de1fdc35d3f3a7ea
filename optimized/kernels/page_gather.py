"""Gather the pages or slots that each request sees, one request behind the other."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 1024
"""Entries of a request that a program writes at a time."""
_MOST_PROGRAMS = 512
"""Programs of a launch beyond which a request gets no second one."""


@metadata_kernel
def _gather_pages_kernel(
    table,
    table_row_stride,
    table_column_stride,
    pool,
    pool_stride,
    starts,
    starts_stride,
    indptr,
    indptr_stride,
    out,
    out_stride,
    entry_page_size,
    POOLED: tl.constexpr,
    STARTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (r, b): tiles b, b + B, b + 2B, … of request r's entries, B programs a request.

    The request's row of the table is `pool[r]`, r unless POOLED; its first position is
    `starts[r]`, 0 unless STARTED. Bound by memory: each entry is read and written once,
    adjacent ones by adjacent threads.
    """
    r = tl.program_id(0).to(tl.int64)
    begin = tl.load(indptr + r * indptr_stride).to(tl.int64)
    count = tl.load(indptr + (r + 1) * indptr_stride).to(tl.int64) - begin
    row = tl.load(pool + r * pool_stride).to(tl.int64) if POOLED else r
    first = tl.load(starts + r * starts_stride).to(tl.int64) if STARTED else 0
    for tile in range(tl.program_id(1), tl.cdiv(count, BLOCK), tl.num_programs(1)):
        i = tile * BLOCK + tl.arange(0, BLOCK)
        exists = i < count
        position = first + i
        column = position // entry_page_size
        entry = table + row * table_row_stride + column * table_column_stride
        page = tl.load(entry, mask=exists, other=0).to(tl.int64)
        slot = page * entry_page_size + (position - column * entry_page_size)
        tl.store(out + (begin + i) * out_stride, slot, mask=exists)


def gather_pages(
    table: torch.Tensor,
    pool: torch.Tensor | None,
    starts: torch.Tensor | None,
    indptr: torch.Tensor,
    out: torch.Tensor,
    entry_page_size: int = 1,
) -> None:
    """Fill `out` from `indptr[0]` up to `indptr[R]` by one launch, without a sync."""
    rows, width = indptr.shape[0] - 1, table.shape[1]
    if not rows or not width:
        return
    tiles = cdiv(width * entry_page_size, _BLOCK)
    of_each = max(1, min(tiles, _MOST_PROGRAMS // rows))
    pool_given = indptr if pool is None else pool
    starts_given = indptr if starts is None else starts
    launch(
        _gather_pages_kernel,
        out.device,
        (rows, of_each),
        table,
        *table.stride(),
        pool_given,
        pool_given.stride(0),
        starts_given,
        starts_given.stride(0),
        indptr,
        indptr.stride(0),
        out,
        out.stride(0),
        entry_page_size,
        POOLED=pool is not None,
        STARTED=starts is not None,
        BLOCK=_BLOCK,
    )
