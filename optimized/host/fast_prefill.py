"""How many sampled tokens each request has."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def queries_fit(offsets: Array, num_actual_tokens: int, max_query_len: int) -> bool:
    """True if `check_queries` would pass."""
    num_reqs = offsets.shape[0] - 1
    fit = offsets[0] == 0 and offsets[num_reqs] <= num_actual_tokens
    for r in range(num_reqs):
        fit = fit and 0 <= offsets[r + 1] - offsets[r] <= max_query_len
    return bool(fit)


@compiled
def longest_query(offsets: Array) -> int:
    """The largest difference of neighbouring offsets, 0 without any."""
    longest = 0
    for r in range(offsets.shape[0] - 1):
        longest = max(longest, offsets[r + 1] - offsets[r])
    return int(longest)


@compiled
def count_sampled(
    offsets: Array, indices: Array, num_actual_tokens: int, starts: Array, mirror: Array
) -> int:
    """Write the running sum of the indices per request, both twins, and return the largest count.

    -1 for an index that is no token. An index is looked for in the request of the one
    before it and the next one first; those beyond the last offset are padding's.
    """
    num_reqs = offsets.shape[0] - 1
    end = offsets[num_reqs]
    for r in range(num_reqs + 1):
        starts[r] = 0
    request = 0
    for index in indices:
        if not 0 <= index < num_actual_tokens:
            return -1
        if index >= end:
            continue
        if request + 1 < num_reqs and index >= offsets[request + 1]:
            request += 1
        if not offsets[request] <= index < offsets[request + 1]:
            first, last = 0, num_reqs - 1  # the last request that does not start behind it
            while first < last:
                middle = (first + last + 1) // 2
                if offsets[middle] <= index:
                    first = middle
                else:
                    last = middle - 1
            request = first
        starts[request + 1] += 1
    longest = 0
    mirror[0] = 0
    for r in range(num_reqs):
        longest = max(longest, starts[r + 1])
        starts[r + 1] += starts[r]
        mirror[r + 1] = starts[r + 1]
    return int(longest)
