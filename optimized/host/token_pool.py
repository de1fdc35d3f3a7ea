"""Read and write the pool of requests' slots; compute positions.

Tensors are given as address, stride in elements and `wide`: True for int64, False for int32.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at, set_element
from .compiled import entry


@entry
def last_slots(
    rows: int,
    table: int,
    row_stride: int,
    column_stride: int,
    wide_table: bool,
    pool: int,
    pool_stride: int,
    wide_pool: bool,
    lengths: int,
    lengths_stride: int,
    wide_lengths: bool,
    out: int,
    wide_out: bool,
) -> None:
    """Write the slot of each prefix's last token, -1 for an empty prefix, to `out`."""
    for r in range(rows):
        length = element(lengths, r * lengths_stride, wide_lengths)
        slot = -1
        if length > 0:
            row = element(pool, r * pool_stride, wide_pool)
            at = row * row_stride + (length - 1) * column_stride
            slot = element(table, at, wide_table)
        set_element(out, r, wide_out, slot)


@entry
def write_rows(
    rows: int,
    table: int,
    row_stride: int,
    column_stride: int,
    wide_table: bool,
    pool: int,
    pool_stride: int,
    wide_pool: bool,
    prefixes: int,
    prefix_lens: int,
    prefix_lens_stride: int,
    wide_prefix_lens: bool,
    seq_lens: int,
    seq_lens_stride: int,
    wide_seq_lens: bool,
    new: int,
    new_stride: int,
) -> None:
    """Write the slots of each request's prefix and new tokens to its row of the table.

    `prefixes` (rows,) int64 holds the address of each prefix's slots.
    """
    addresses = int64_at(prefixes, rows)
    i = 0
    for r in range(rows):
        row = element(pool, r * pool_stride, wide_pool) * row_stride
        prefix = element(prefix_lens, r * prefix_lens_stride, wide_prefix_lens)
        end = element(seq_lens, r * seq_lens_stride, wide_seq_lens)
        for t in range(prefix):
            slot = element(int(addresses[r]), t, True)
            set_element(table, row + t * column_stride, wide_table, slot)
        for t in range(prefix, end):
            slot = element(new, i * new_stride, True)
            set_element(table, row + t * column_stride, wide_table, slot)
            i += 1


@entry
def fill_positions(
    rows: int,
    prefixed: bool,
    prefixes: int,
    prefixes_stride: int,
    wide_prefixes: bool,
    lengths: int,
    lengths_stride: int,
    wide_lengths: bool,
    total: int,
    positions: int,
    starts: int,
) -> None:
    """Write `total` positions, int64, and the index of each request's first one, int32."""
    out, first = int64_at(positions, total), int32_at(starts, rows)
    i = 0
    for r in range(rows):
        first[r] = i
        position = element(prefixes, r * prefixes_stride, wide_prefixes) if prefixed else 0
        for _ in range(element(lengths, r * lengths_stride, wide_lengths)):
            out[i] = position
            position += 1
            i += 1
