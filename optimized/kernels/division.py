"""Divisions by sizes that a model fixes, without a version of a kernel for each size.

Block sizes, ranks and turns are powers of two in nearly every model: a kernel gets their
logarithms and shifts. Other sizes have one more version, which divides.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from functools import lru_cache

import triton
import triton.language as tl


@lru_cache(maxsize=256)
def divisors(*sizes: int) -> tuple[bool, tuple[int, ...]]:
    """Return whether all sizes are powers of two, and their logarithms or the sizes themselves."""
    powers = all(size > 0 and size & (size - 1) == 0 for size in sizes)
    return powers, tuple([size.bit_length() - 1 for size in sizes]) if powers else sizes


@triton.jit
def quotient(number, divisor, POWERS: tl.constexpr):
    """Return the quotient of a number of at least 0 by one of `divisors`."""
    return number >> divisor if POWERS else number // divisor


@triton.jit
def product(number, divisor, POWERS: tl.constexpr):
    """Return the product of an int64 number and one of `divisors`."""
    return number << divisor if POWERS else number * divisor
