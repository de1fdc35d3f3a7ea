"""Count the sampled tokens of each request.

Offsets are passed as addresses of int64 if `wide`, otherwise of int32.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at
from .arrays import Array
from .compiled import compiled, entry


@entry
def queries_fit(
    wide: bool, offsets: int, num_reqs: int, num_actual_tokens: int, max_query_len: int
) -> bool:
    """True if `check_queries` would pass."""
    if wide:
        return rises(int64_at(offsets, num_reqs + 1), num_actual_tokens, max_query_len)
    return rises(int32_at(offsets, num_reqs + 1), num_actual_tokens, max_query_len)


@compiled
def rises(offsets: Array, num_actual_tokens: int, max_query_len: int) -> bool:
    """Compute `queries_fit` for offsets of either dtype."""
    num_reqs = offsets.shape[0] - 1
    fit = offsets[0] == 0 and offsets[num_reqs] <= num_actual_tokens
    for r in range(num_reqs):  # no early exit: the loop vectorises
        query_len = offsets[r + 1] - offsets[r]
        fit &= (query_len >= 0) & (query_len <= max_query_len)
    return bool(fit)


@compiled
def longest_query(offsets: Array) -> int:
    """Return the longest query, 0 without requests."""
    longest = 0
    for r in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[r + 1] - offsets[r])
    return int(longest)


@entry
def count_sampled(
    wide: bool,
    offsets: int,
    num_reqs: int,
    num_actual_tokens: int,
    wide_indices: bool,
    indices: int,
    stride: int,
    num_indices: int,
    starts: int,
    mirror: int,
) -> tuple[int, int]:
    """Write the running sum of the indices per request to `starts` and to `mirror`.

    Return the largest count and the total; (-1, 0) if an index is not a token.
    """
    sampled = indices, stride, num_indices, wide_indices
    n = num_reqs + 1
    if wide:
        made64 = int64_at(starts, n), int64_at(mirror, n)
        return count_each(int64_at(offsets, n), num_actual_tokens, sampled, made64)
    outputs = int32_at(starts, n), int32_at(mirror, n)
    return count_each(int32_at(offsets, n), num_actual_tokens, sampled, outputs)


@compiled
def count_each(
    offsets: Array,
    num_actual_tokens: int,
    sampled: tuple[int, int, int, bool],
    outputs: tuple[Array, Array],
) -> tuple[int, int]:
    """Compute `count_sampled` for offsets of either dtype."""
    indices, stride, num_indices, wide_indices = sampled
    starts, mirror = outputs
    num_reqs = offsets.shape[0] - 1
    end = offsets[num_reqs]
    starts[:] = 0
    request = 0
    for i in range(num_indices):
        index = element(indices, i * stride, wide_indices)
        if not 0 <= index < num_actual_tokens:
            return -1, 0
        if index >= end:  # a token of the padding
            continue
        # Indices are mostly sorted: try the request of the previous index, then the next one.
        if request + 1 < num_reqs and index >= offsets[request + 1]:
            request += 1
        if not offsets[request] <= index < offsets[request + 1]:
            first, last = 0, num_reqs - 1  # bisect for the last request that starts at or before it
            while first < last:
                middle = (first + last + 1) // 2
                if offsets[middle] <= index:
                    first = middle
                else:
                    last = middle - 1
            request = first
        starts[request + 1] += 1
    longest, total = 0, 0
    mirror[0] = 0
    for r in range(num_reqs):
        longest = max(longest, starts[r + 1])
        total += starts[r + 1]
        starts[r + 1] = mirror[r + 1] = total
    return int(longest), int(total)
