"""Compute the virtual requests of chunked local attention.

Offsets and lengths are passed as addresses of int64 if `wide`, otherwise of int32.
"""

from __future__ import annotations

from .addresses import int32_at, int64_at
from .arrays import Array
from .compiled import compiled, entry


@entry
def count_virtual(
    wide: bool,
    offsets: int,
    seq_lens: int,
    num_reqs: int,
    chunk: int,
    computed: int,
    num_actual_tokens: int,
    max_query_len: int,
    max_seq_len: int,
) -> int:
    """Return the number of virtual requests.

    Return -1 if `check_queries` or `check_sequences` would fail.
    """
    bounds = num_actual_tokens, max_query_len, max_seq_len
    if wide:
        starts, lengths = int64_at(offsets, num_reqs + 1), int64_at(seq_lens, num_reqs)
        return count_chunks(starts, lengths, int64_at(computed, num_reqs), bounds, chunk)
    starts, lengths = int32_at(offsets, num_reqs + 1), int32_at(seq_lens, num_reqs)
    return count_chunks(starts, lengths, int32_at(computed, num_reqs), bounds, chunk)


@compiled
def count_chunks(
    offsets: Array, seq_lens: Array, computed: Array, bounds: tuple[int, int, int], chunk: int
) -> int:
    """Compute `count_virtual` for lengths of either dtype."""
    num_reqs = seq_lens.shape[0]
    num_actual_tokens, max_query_len, max_seq_len = bounds
    if offsets[0] != 0 or offsets[num_reqs] > num_actual_tokens:
        return -1
    total = 0
    for r in range(num_reqs):
        query_len, seq_len = offsets[r + 1] - offsets[r], seq_lens[r]
        if not 0 <= query_len <= max_query_len or not query_len <= seq_len <= max_seq_len:
            return -1
        if computed[r] != seq_len - query_len:
            return -1
        total += 1
        if query_len > 0:
            total += (seq_len - 1) // chunk - (seq_len - query_len) // chunk
    return int(total)


@entry
def fill_virtual(
    wide: bool,
    offsets: int,
    seq_lens: int,
    num_reqs: int,
    chunk: int,
    num_virtual: int,
    rows: int,
    twins: int,
    twin_words: int,
    wide_table: bool,
    table: int,
    row_stride: int,
    column_stride: int,
    width: int,
    virtual_table: int,
    columns: int,
) -> tuple[int, int]:
    """Write the virtual requests; return the longest query and the longest sequence.

    `rows` gets V + 1 offsets, V lengths and V numbers of computed tokens. `twins` gets the
    offsets and lengths again, then V requests and V chunk numbers if it has room. If
    `columns` is not 0, `virtual_table` gets that many block ids a virtual request.
    """
    n, source = 3 * num_virtual + 1, (wide_table, table, row_stride, column_stride, width)
    target = virtual_table, columns
    if wide:
        batch64 = int64_at(offsets, num_reqs + 1), int64_at(seq_lens, num_reqs)
        made64 = int64_at(rows, n), int64_at(twins, twin_words)
        return fill_chunks(batch64, chunk, made64, source, target)
    batch = int32_at(offsets, num_reqs + 1), int32_at(seq_lens, num_reqs)
    outputs = int32_at(rows, n), int32_at(twins, twin_words)
    return fill_chunks(batch, chunk, outputs, source, target)


@compiled
def fill_chunks(
    batch: tuple[Array, Array],
    chunk: int,
    outputs: tuple[Array, Array],
    source: tuple[bool, int, int, int, int],
    target: tuple[int, int],
) -> tuple[int, int]:
    """Compute `fill_virtual` for lengths of either dtype."""
    (offsets, seq_lens), (rows, twins) = batch, outputs
    n = rows.shape[0] // 3
    starts, lengths, computed = rows[: n + 1], rows[n + 1 : 2 * n + 1], rows[2 * n + 1 :]
    requests, chunks = twins[2 * n + 1 : 3 * n + 1], twins[3 * n + 1 :]
    v, start, max_query_len, max_seq_len = 0, 0, 0, 0
    starts[0] = 0
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
            starts[v + 1] = start
            lengths[v] = end - begin
            computed[v] = end - begin - virtual_len
            max_query_len = max(max_query_len, virtual_len)
            max_seq_len = max(max_seq_len, end - begin)
            if chunks.shape[0]:
                requests[v], chunks[v] = r, k
            if target[1]:
                gather_blocks(source, r, k, target, v)
            v += 1
    twins[: 2 * n + 1] = rows[: 2 * n + 1]
    return int(max_query_len), int(max_seq_len)


@compiled
def gather_blocks(
    source: tuple[bool, int, int, int, int], r: int, k: int, target: tuple[int, int], v: int
) -> None:
    """Copy the columns of request r's chunk k to row v, repeating the last column at the end."""
    wide, table, row_stride, column_stride, width = source
    virtual_table, columns = target
    first = min(k * columns, width - 1)
    inside = min(columns, width - first)
    begin, row = r * row_stride + first * column_stride, v * columns
    span = 1 + (width - 1 - first) * column_stride
    if wide:
        ids64, out64 = int64_at(table + 8 * begin, span), int64_at(virtual_table + 8 * row, columns)
        copy_columns(ids64, column_stride, inside, out64)
    else:
        ids, out = int32_at(table + 4 * begin, span), int32_at(virtual_table + 4 * row, columns)
        copy_columns(ids, column_stride, inside, out)


@compiled
def copy_columns(ids: Array, stride: int, inside: int, out: Array) -> None:
    """Copy `inside` ids, `stride` apart, to `out`, then repeat the last id."""
    if stride == 1:
        for i in range(inside):  # vectorises
            out[i] = ids[i]
    else:
        for i in range(inside):
            out[i] = ids[i * stride]
    for i in range(inside, out.shape[0]):
        out[i] = ids[-1]
