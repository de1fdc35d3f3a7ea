"""Write page tables as CSR.

Tensors are given as address, stride in elements and `wide`: True for int64, False for int32.
"""

from __future__ import annotations

from .addresses import element, int32_at, set_element
from .compiled import entry


@entry
def count_pages(rows: int, lengths: int, stride: int, wide: bool, page_size: int, out: int) -> int:
    """Write offsets (rows + 1), then lengths of the last pages (rows), int32; return the pages."""
    written = int32_at(out, 2 * rows + 1)
    pages = 0
    written[0] = 0
    for r in range(rows):
        length = element(lengths, r * stride, wide)
        count = (length + page_size - 1) // page_size
        pages += count
        written[r + 1] = pages
        written[rows + 1 + r] = length - (count - 1) * page_size if count else 0
    return pages


@entry
def gather(
    rows: int,
    pooled: bool,
    pool: int,
    pool_stride: int,
    wide_pool: bool,
    started: bool,
    starts: int,
    starts_stride: int,
    wide_starts: bool,
    indptr: int,
    indptr_stride: int,
    wide_indptr: bool,
    table: int,
    row_stride: int,
    column_stride: int,
    wide_table: bool,
    page_size: int,
    out: int,
    out_stride: int,
    wide_out: bool,
) -> None:
    """Write the entries that each request sees to `out`, at its offsets.

    Request r has row `pool[r]` of the table, row r unless `pooled`, and sees positions from
    `starts[r]` on, from 0 unless `started`. An entry of the table stands for `page_size`
    positions.
    """
    for r in range(rows):
        begin = element(indptr, r * indptr_stride, wide_indptr)
        end = element(indptr, (r + 1) * indptr_stride, wide_indptr)
        row = element(pool, r * pool_stride, wide_pool) if pooled else r
        position = element(starts, r * starts_stride, wide_starts) if started else 0
        for i in range(begin, end):
            column = position // page_size
            page = element(table, row * row_stride + column * column_stride, wide_table)
            set_element(
                out, i * out_stride, wide_out, page * page_size + position - column * page_size
            )
            position += 1


@entry
def append_positions(
    rows: int,
    indptr: int,
    indptr_stride: int,
    wide_indptr: bool,
    lengths: int,
    lengths_stride: int,
    wide_lengths: bool,
    length: int,
    out: int,
) -> None:
    """Write requests and positions of the appended tokens, then -1 and 0: 2 * `length` int32."""
    requests, positions = int32_at(out, length), int32_at(out + 4 * length, length)
    i = 0
    for r in range(rows):
        end = element(indptr, (r + 1) * indptr_stride, wide_indptr)
        position = element(lengths, r * lengths_stride, wide_lengths) - (end - i)
        while i < end:
            requests[i] = r
            positions[i] = position
            position += 1
            i += 1
    for j in range(i, length):
        requests[j] = -1
        positions[j] = 0
