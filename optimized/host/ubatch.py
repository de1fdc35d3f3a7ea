"""Compute the offsets and lengths of one micro-batch.

They are passed as addresses of int64 if `wide`, otherwise of int32.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at
from .arrays import Array
from .compiled import compiled, entry


@entry
def spans_match(
    wide: bool, offsets: int, num_reqs: int, r0: int, r1: int, t0: int, t1: int
) -> bool:
    """True if tokens [t0, t1) start in request r0 and stop in request r1 - 1.

    The offsets must not decrease. Tokens at or beyond the last offset are padding of the
    last request that has tokens and of the rows after it.
    """
    total = element(offsets, num_reqs, wide)
    first, second = element(offsets, r0, wide), element(offsets, r0 + 1, wide)
    starts = first <= t0 < second or t0 >= total == second
    last, end = element(offsets, r1 - 1, wide), element(offsets, r1, wide)
    return starts and (last < t1 <= end or t1 >= total == end)


@entry
def rebase(wide: bool, offsets: int, start: int, end: int, out: int) -> None:
    """Write offsets [start, end), rebased to 0."""
    if wide:
        subtract(int64_at(offsets + 8 * start, end - start), int64_at(out, end - start))
    else:
        subtract(int32_at(offsets + 4 * start, end - start), int32_at(out, end - start))


@compiled
def subtract(offsets: Array, out: Array) -> None:
    """Compute `rebase` for offsets of either dtype."""
    for i in range(out.shape[0]):
        out[i] = offsets[i] - offsets[0]


@entry
def slice_rows(
    wide: bool,
    offsets: int,
    seq_lens: int,
    computed: int,
    r0: int,
    r1: int,
    t0: int,
    t1: int,
    rows: int,
    num_written: int,
) -> tuple[int, int]:
    """Write the rows of requests [r0, r1) cut to tokens [t0, t1).

    `rows` gets n + 1 offsets, n lengths and n numbers of computed tokens, then offsets and
    lengths again if `num_written` has room for them. Return the longest query and the
    longest sequence of the child.
    """
    n = r1 - r0
    if wide:
        starts, lengths = int64_at(offsets + 8 * r0, n + 1), int64_at(seq_lens + 8 * r0, n)
        batch64 = starts, lengths, int64_at(computed + 8 * r0, n)
        return cut_rows(batch64, t0, t1, int64_at(rows, num_written))
    starts, lengths = int32_at(offsets + 4 * r0, n + 1), int32_at(seq_lens + 4 * r0, n)
    batch = starts, lengths, int32_at(computed + 4 * r0, n)
    return cut_rows(batch, t0, t1, int32_at(rows, num_written))


@compiled
def cut_rows(batch: tuple[Array, Array, Array], t0: int, t1: int, rows: Array) -> tuple[int, int]:
    """Compute `slice_rows` for the given rows, of either dtype."""
    offsets, seq_lens, computed = batch
    n = seq_lens.shape[0]
    starts, lengths, kept = rows[: n + 1], rows[n + 1 : 2 * n + 1], rows[2 * n + 1 : 3 * n + 1]
    max_query_len = max_seq_len = 0
    starts[0] = previous = 0
    for r in range(n):
        start, end = offsets[r], offsets[r + 1]
        seq_len = seq_lens[r] - max(0, end - t1)
        rebased = min(max(end, t0), t1) - t0
        starts[r + 1] = rebased
        lengths[r] = seq_len
        kept[r] = computed[r] + max(0, min(t0, end) - start)
        max_query_len = max(max_query_len, rebased - previous)
        max_seq_len = max(max_seq_len, seq_len)
        previous = rebased
    twins = rows[3 * n + 1 :]
    twins[:] = rows[: twins.shape[0]]
    return int(max_query_len), int(max_seq_len)
