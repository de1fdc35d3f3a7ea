"""Write the device tensors of the virtual batch of chunked local attention."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_ROWS, _COLUMNS = 8, 128
"""Tile of the table per program. A row of it fills a cache line, and no width has its own."""


@metadata_kernel
def _gather_virtual_kernel(
    packed,
    table,
    table_row_stride,
    table_column_stride,
    width,
    starts,
    lengths,
    virtual_table,
    num_virtual,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Program (i, j): tile (i, j) of the virtual block table, (ROWS, COLUMNS) elements.

    `packed` holds V + 1 offsets, V lengths, V requests and V chunk numbers of the V virtual
    requests. The programs of column tile 0 also write the offsets and lengths of their
    rows. Columns beyond the width of the table repeat its last column. Bound by memory:
    each block id is read and written once, adjacent columns by adjacent threads.
    """
    v = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_batch = v < num_virtual
    if tl.program_id(1) == 0:
        start = tl.load(packed + v, mask=v <= num_virtual)
        tl.store(starts + v, start, mask=v <= num_virtual)
        length = tl.load(packed + num_virtual + 1 + v, mask=in_batch)
        tl.store(lengths + v, length, mask=in_batch)
    request = tl.load(packed + 2 * num_virtual + 1 + v, mask=in_batch, other=0).to(tl.int64)
    chunk = tl.load(packed + 3 * num_virtual + 1 + v, mask=in_batch, other=0).to(tl.int64)
    i = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column = tl.minimum((chunk * columns)[:, None] + i[None, :], width - 1)
    source = (request * table_row_stride)[:, None] + column * table_column_stride
    mask = in_batch[:, None] & (i < columns)[None, :]
    block = tl.load(table + source, mask=mask)
    tl.store(virtual_table + v.to(tl.int64)[:, None] * columns + i[None, :], block, mask=mask)


def gather_virtual(
    packed: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    virtual_table: torch.Tensor,
) -> None:
    """Fill `starts` (V+1), `lengths` (V) and `virtual_table` (V, columns) from `packed` (4V+1)."""
    num_virtual, columns = virtual_table.shape
    grid = (cdiv(num_virtual + 1, _ROWS), cdiv(columns, _COLUMNS))
    launch(
        _gather_virtual_kernel,
        table.device,
        grid,
        packed,
        table,
        *table.stride(),
        table.shape[1],
        starts,
        lengths,
        virtual_table,
        num_virtual,
        columns,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
    )
