"""Derive block tables for kernels, in loops that take addresses.

Integers at an address are int64 if its `wide` flag is set, int32 otherwise; strides are in
elements.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at
from .arrays import Array
from .compiled import compiled, entry


@entry
def expand_blocks(
    table: int,
    wide: bool,
    rows: int,
    columns: int,
    row_stride: int,
    column_stride: int,
    parts: int,
    step: int,
    out: int,
    out_row_stride: int,
    out_column_stride: int,
) -> None:
    """Write `parts` kernel blocks `block * step + j` for each block, -1 for a negative one."""
    if rows == 0 or columns == 0:
        return
    span = 1 + (rows - 1) * row_stride + (columns - 1) * column_stride
    last = (rows - 1) * out_row_stride + (columns * parts - 1) * out_column_stride
    shape = rows, columns, parts, step
    strides = row_stride, column_stride, out_row_stride, out_column_stride
    if wide:
        expand(int64_at(table, span), int64_at(out, last + 1), shape, strides)
    else:
        expand(int32_at(table, span), int32_at(out, last + 1), shape, strides)


@compiled
def expand(
    table: Array, out: Array, shape: tuple[int, int, int, int], strides: tuple[int, int, int, int]
) -> None:
    """Compute `expand_blocks` for tables of either dtype."""
    rows, columns, parts, step = shape
    row_stride, column_stride, out_row_stride, out_column_stride = strides
    for r in range(rows):
        place = r * out_row_stride
        for c in range(columns):
            block = table[r * row_stride + c * column_stride]
            for j in range(parts):
                out[place] = block * step + j if block >= 0 else -1
                place += out_column_stride


@entry
def take_states(
    table: int,
    wide_table: bool,
    row_stride: int,
    column_stride: int,
    seq_lens: int,
    wide_lengths: bool,
    rows: int,
    block_size: int,
    count: int,
    out: int,
) -> None:
    """Write `count` blocks of each row to dense memory, from that of its last token on."""
    for r in range(rows):
        first = max(0, element(seq_lens, r, wide_lengths) - 1) // block_size
        for i in range(count):
            block = element(table, r * row_stride + (first + i) * column_stride, wide_table)
            if wide_table:
                int64_at(out, rows * count)[r * count + i] = block
            else:
                int32_at(out, rows * count)[r * count + i] = block
