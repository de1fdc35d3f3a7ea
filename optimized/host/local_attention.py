"""The virtual requests of chunked local attention."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def count_virtual(offsets: Array, seq_lens: Array, chunk: int) -> int:
    """Number of virtual requests."""
    total = 0
    for r in range(seq_lens.shape[0]):
        query_len = offsets[r + 1] - offsets[r]
        if query_len == 0:
            total += 1
        else:
            total += (seq_lens[r] - 1) // chunk - (seq_lens[r] - query_len) // chunk + 1
    return total


@compiled
def fill_virtual(
    offsets: Array,
    seq_lens: Array,
    chunk: int,
    starts: tuple[Array, Array],
    lengths: tuple[Array, Array],
    computed: Array,
    origin: Array,
) -> tuple[int, int]:
    """Write each virtual request's offsets, lengths, request and chunk number.

    Of `starts` and `lengths` both twins are written. Returns the longest query and
    sequence.
    """
    v, start, max_query_len, max_seq_len = 0, 0, 0, 0
    starts[0][0] = starts[1][0] = 0
    for r in range(seq_lens.shape[0]):
        seq_len = seq_lens[r]
        query_len = offsets[r + 1] - offsets[r]
        first = seq_len - query_len
        last_chunk = max(0, (seq_len - 1) // chunk)
        first_chunk = first // chunk if query_len else last_chunk
        for k in range(first_chunk, last_chunk + 1):
            begin = k * chunk
            end = min(seq_len, begin + chunk)
            virtual_len = end - max(first, begin)
            start += virtual_len
            starts[0][v + 1] = start
            starts[1][v + 1] = start
            lengths[0][v] = end - begin
            lengths[1][v] = end - begin
            computed[v] = end - begin - virtual_len
            origin[0, v] = r
            origin[1, v] = k
            max_query_len = max(max_query_len, virtual_len)
            max_seq_len = max(max_seq_len, end - begin)
            v += 1
    return max_query_len, max_seq_len


@compiled
def gather_blocks(
    table: Array,
    row_stride: int,
    column_stride: int,
    width: int,
    origin: Array,
    out: Array,
) -> None:
    """Copy each virtual request's columns of the flat table; beyond the last one, that one."""
    columns = out.shape[1]
    for v in range(out.shape[0]):
        row = origin[0, v] * row_stride
        first = min(origin[1, v] * columns, width)
        inside = min(columns, width - first)
        begin = row + first * column_stride
        kept, beyond = out[v, :inside], out[v, inside:]
        if column_stride == 1:
            source = table[begin : begin + inside]  # indexed from 0, so that the loop vectorises
            for i in range(inside):
                kept[i] = source[i]
        else:
            for i in range(inside):
                kept[i] = table[begin + i * column_stride]
        last = table[row + (width - 1) * column_stride]
        for i in range(columns - inside):
            beyond[i] = last
