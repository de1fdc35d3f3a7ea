"""Sums over the requests before one, which programs compute on their own."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tokens_before(prefixes, prefixes_stride, lengths, lengths_stride, row, ROWS: tl.constexpr):
    """Return the sum of lengths less prefixes of requests [0, row), int64."""
    total = tl.zeros([ROWS], tl.int64)
    for start in range(0, row, ROWS):
        r = start + tl.arange(0, ROWS)
        prefix = tl.load(prefixes + r * prefixes_stride, mask=r < row, other=0)
        length = tl.load(lengths + r * lengths_stride, mask=r < row, other=0)
        total += length - prefix
    return tl.sum(total)


@triton.jit
def pages_before(
    prefixes, prefixes_stride, lengths, lengths_stride, row, page_size, ROWS: tl.constexpr
):
    """Return the number of pages that requests [0, row) begin, int64."""
    total = tl.zeros([ROWS], tl.int64)
    for start in range(0, row, ROWS):
        r = start + tl.arange(0, ROWS)
        prefix = tl.load(prefixes + r * prefixes_stride, mask=r < row, other=0)
        length = tl.load(lengths + r * lengths_stride, mask=r < row, other=0)
        total += tl.cdiv(length.to(tl.int64), page_size) - tl.cdiv(prefix.to(tl.int64), page_size)
    return tl.sum(total)


@triton.jit
def sum_before(values, stride, row, ROWS: tl.constexpr):
    """Return the sum of `values` of requests [0, row), int64."""
    total = tl.zeros([ROWS], tl.int64)
    for start in range(0, row, ROWS):
        r = start + tl.arange(0, ROWS)
        total += tl.load(values + r * stride, mask=r < row, other=0)
    return tl.sum(total)
