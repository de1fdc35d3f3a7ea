"""Find the split between decodes and prefills."""

from __future__ import annotations

from .addresses import int32_at, int64_at
from .arrays import Array
from .compiled import compiled, entry


@entry
def leading_decodes(
    wide: bool,
    offsets: int,
    num_reqs: int,
    num_actual_tokens: int,
    max_query_len: int,
    threshold: int,
    uniform: bool,
) -> tuple[int, int]:
    """Return the number of leading decodes and of their tokens.

    Return (-1, 0) if `check_queries` would fail. `offsets` is the address of num_reqs + 1
    int32, int64 if `wide`. With `uniform`, decodes are the leading requests as long as the
    first, and rows of length 0 after them if nothing else follows.
    """
    if wide:
        starts = int64_at(offsets, num_reqs + 1)
        return scan(starts, num_actual_tokens, max_query_len, threshold, uniform)
    starts = int32_at(offsets, num_reqs + 1)
    return scan(starts, num_actual_tokens, max_query_len, threshold, uniform)


@compiled
def scan(
    offsets: Array, num_actual_tokens: int, max_query_len: int, threshold: int, uniform: bool
) -> tuple[int, int]:
    """Compute `leading_decodes` for offsets of either dtype."""
    num_reqs = offsets.shape[0] - 1
    fit = offsets[0] == 0 and offsets[num_reqs] <= num_actual_tokens
    for r in range(num_reqs):  # no early exit: the loop vectorises
        query_len = offsets[r + 1] - offsets[r]
        fit &= (query_len >= 0) & (query_len <= max_query_len)
    if not fit:
        return -1, 0
    num_decodes = num_reqs if max_query_len <= threshold and not uniform else 0
    first_len = offsets[1] - offsets[0] if num_reqs > 0 else 0
    while num_decodes < num_reqs:
        query_len = offsets[num_decodes + 1] - offsets[num_decodes]
        if query_len > threshold or (uniform and query_len != first_len):
            break
        num_decodes += 1
    if uniform and num_decodes > 0 and offsets[num_decodes] == offsets[num_reqs]:
        num_decodes = num_reqs
    return num_decodes, int(offsets[num_decodes])
