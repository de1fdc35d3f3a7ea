"""The row of each token, which programs find in the offsets."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_of(token, offsets, stride, added_per_row, first_step, num_reqs):
    """Return the row of each token, `num_reqs` for tokens behind the last row.

    `token` is int64. Row r begins at `offsets[r] + r * added_per_row`: a drafter adds entries to
    each row. The row of a token is the last one that begins at or before it, by bisection:
    `first_step` is the largest power of two not above the number of rows. Bound by the latency
    of those log2(R) loads, which the tokens of a tile mostly share.
    """
    row = tl.zeros_like(token)
    step = first_step
    while step > 0:
        probe = row + step
        exists = probe <= num_reqs
        begin = tl.load(offsets + probe * stride, mask=exists, other=0) + probe * added_per_row
        row = tl.where(exists & (begin <= token), probe, row)
        step = step // 2
    return row


def first_step(rows: int) -> int:
    """Return the first step of the bisection over so many rows, 0 for none."""
    return 1 << rows.bit_length() >> 1
