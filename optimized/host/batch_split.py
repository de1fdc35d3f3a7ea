"""Find the split between decodes and prefills."""

from __future__ import annotations

import numpy as np

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


@compiled
def swaps_to_order(regions: Array) -> Array:
    """Return (swaps, 2) rows to exchange, one after another, until `regions` are ascending.

    `regions` is (R,) int64, each of 0 to 3, and is changed.
    """
    num_reqs = regions.shape[0]
    starts = np.zeros(5, np.int64)
    for r in range(num_reqs):
        starts[regions[r] + 1] += 1
    for region in range(4):
        starts[region + 1] += starts[region]
    swaps, count = np.empty((num_reqs, 2), np.int64), 0
    # places[a, b]: row in region a's range from which the search for a row of region b goes on
    places = np.empty((4, 4), np.int64)
    for a in range(4):
        places[a, :] = starts[a]
    home = 0
    for row in range(num_reqs):
        while row >= starts[home + 1]:
            home += 1
        own = regions[row]
        if own == home:
            continue
        # A row that belongs here: best from this row's own range, otherwise from any later one.
        other = num_reqs
        for step in range(4):
            area = (own + step) % 4
            if area <= home:
                continue
            other = places[area, home]
            while other < starts[area + 1] and regions[other] != home:
                other += 1
            places[area, home] = other
            if other < starts[area + 1]:
                break
        swaps[count, 0], swaps[count, 1] = row, other
        count += 1
        regions[row], regions[other] = home, own
    return swaps[:count]
