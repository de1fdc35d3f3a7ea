"""Map a block table to the smaller blocks of a kernel."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .division import divisors, product, quotient
from .launcher import cdiv, launch
from .versions import metadata_kernel

_ROWS, _COLUMNS = 8, 128
"""Tile of the result per program. A row of it fills a cache line, and no width has its own."""


@metadata_kernel
def _kernel_blocks_kernel(
    table,
    table_row_stride,
    table_column_stride,
    out,
    out_row_stride,
    out_column_stride,
    num_reqs,
    width,
    step,
    parts,
    POWERS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, j): tile (i, j) of the result, (ROWS, COLUMNS) elements.

    Bound by memory: each block id is read from the cache by `parts` threads, and each kernel
    block written once.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    place = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    column = quotient(place, parts, POWERS)
    mask = (row < num_reqs) & (column < width)
    entry = table + row * table_row_stride + column * table_column_stride
    block = tl.load(entry, mask=mask, other=0).to(tl.int64)
    kernel_block = tl.where(block < 0, -1, block * step + (place - product(column, parts, POWERS)))
    target = out + row * out_row_stride + place * out_column_stride
    tl.store(target, kernel_block.to(out.dtype.element_ty), mask=mask)


def write_kernel_blocks(
    block_table: torch.Tensor, parts: int, step: int, result: torch.Tensor
) -> None:
    """Fill `result` (R, W * parts), of the table's dtype and any strides, by one launch."""
    num_reqs, columns = result.shape
    if not result.numel():
        return
    powers, sizes = divisors(parts)
    grid = (cdiv(num_reqs, _ROWS), cdiv(columns, _COLUMNS))
    launch(
        _kernel_blocks_kernel,
        result.device,
        grid,
        block_table,
        *block_table.stride(),
        result,
        *result.stride(),
        num_reqs,
        block_table.shape[1],
        step,
        *sizes,
        POWERS=powers,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
    )
