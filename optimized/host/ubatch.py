"""One micro-batch's offsets and lengths."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def spans_match(offsets: Array, r0: int, r1: int, t0: int, t1: int) -> bool:
    """Whether tokens [t0, t1) are those of requests [r0, r1), the ends cut at will.

    The offsets are known not to decrease. Tokens behind the last offset are padding of
    the last request that has tokens and of the rows behind it.
    """
    total = offsets[-1]
    starts = offsets[r0] <= t0 < offsets[r0 + 1] or t0 >= total == offsets[r0 + 1]
    ends = offsets[r1 - 1] < t1 <= offsets[r1] or t1 >= total == offsets[r1]
    return bool(starts and ends)


@compiled
def slice_rows(
    offsets: Array,
    seq_lens: Array,
    computed: Array,
    bounds: tuple[int, int, int, int],
    child_starts: tuple[Array, Array],
    child_seq_lens: tuple[Array, Array],
    child_computed: Array,
) -> tuple[int, int]:
    """Write the rows of requests [r0, r1) cut to tokens [t0, t1), both twins of each.

    `bounds` is (r0, r1, t0, t1). Returns the longest query and sequence of the child.
    """
    r0, r1, t0, t1 = bounds
    max_query_len, max_seq_len = 0, seq_lens[r0] - max(0, offsets[r0 + 1] - t1)
    child_starts[0][0] = child_starts[1][0] = 0
    previous = 0
    for r in range(r0, r1):
        start, end = offsets[r], offsets[r + 1]
        seq_len = seq_lens[r] - max(0, end - t1)
        rebased = min(max(end, t0), t1) - t0
        row = r - r0
        child_starts[0][row + 1] = rebased
        child_starts[1][row + 1] = rebased
        child_seq_lens[0][row] = seq_len
        child_seq_lens[1][row] = seq_len
        child_computed[row] = computed[r] + max(0, min(t0, end) - start)
        max_query_len = max(max_query_len, rebased - previous)
        max_seq_len = max(max_seq_len, seq_len)
        previous = rebased
    return max_query_len, max_seq_len
