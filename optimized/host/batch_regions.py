"""Find the regions of a batch: decodes, extends, prefills."""

from __future__ import annotations

from .addresses import element
from .compiled import entry


@entry
def leading_regions(
    offsets: int,
    wide_offsets: bool,
    seq_lens: int,
    wide_lengths: bool,
    num_reqs: int,
    threshold: int,
) -> tuple[int, int, int, int]:
    """Return the first request that is no decode, the first prefill, and the first token of both.

    For a request that does not exist, `num_reqs` and -1. `offsets` and `seq_lens` are
    addresses of dense int32, int64 if wide.
    """
    first_long, long_token = num_reqs, -1
    start = element(offsets, 0, wide_offsets)
    for r in range(num_reqs):
        end = element(offsets, r + 1, wide_offsets)
        if end - start > threshold:
            if first_long == num_reqs:
                first_long, long_token = r, start
            if element(seq_lens, r, wide_lengths) == end - start:
                return first_long, r, long_token, start
        start = end
    return first_long, num_reqs, long_token, -1
