"""Catalogue of critical magnitudes: the numbers at which code changes its behaviour.

Kernels work in tiles, indices and products pass the limits of their types, sorts and searches
change their method with the number of entries. Each limit is used with its two neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import log2

TILES = (16, 32, 64, 128, 256)
"""Sizes of the tiles of kernels, in entries."""
LARGE_TILES = (512, 1024)
LIMITS = (2**15, 2**16, 2**24, 2**31, 2**32)
"""Limits of int16, float32 (as an integer), int32 and uint32, and those of a grid's axis."""
NUMBERS = (9, 17, 33, 48, 65, 67, 129, 257, 513)
"""Numbers of requests, pairs or decodes: one more than a tile, with a remainder, and a multiple of
a tile that is no power of two."""
FULL = (128, 256)
"""Numbers that fill a tile, or leave none of a byte's values for a mark."""
LARGE = (1027, 2050, 4101)
"""Numbers of tokens, rows or entries of large cases: more than several tiles, with a remainder."""
ROUNDED_SIZES = (656, 784)
"""Tokens per block of hybrid models, of which a multiple times the size's reciprocal is rounded
down: in float32 the first, in float64 the second."""
UNEVEN_SIZES = (48, 272)
"""Tokens per block that are no power of two, whose reciprocal is always rounded."""
BLOCK_SIZES = (1, 3, 16, 32, 48, 64, 128, 256, 512, 528, *ROUNDED_SIZES, 1024)
"""Tokens per block, of engines; those of hybrid models are multiples of 16, no powers of two."""
FAR_POSITIONS = (2**13, 2**14, 2**17, 2**19)
"""Ends of blocks at which a multiplication by a reciprocal of a few bits is wrong."""
FLOAT_LIMITS = (2**24, 2**27)
"""Positions from which on float32 rounds the last ones of a block up to the next block."""
_MOST_ID = 2**31 - 1


def around(values: Iterable[int], low: int = 0, high: int = 2**33) -> tuple[int, ...]:
    """Return each value and its neighbours, ascending, within `low` and `high`."""
    neighbours = {value + edge for value in values for edge in (-1, 0, 1)}
    return tuple(sorted(value for value in neighbours if low <= value <= high))


@cache
def critical(low: int, high: int) -> tuple[int, ...]:
    """Return the critical magnitudes from `low` to `high`, with both ends."""
    inner = around((0, *TILES, *LARGE_TILES, *LIMITS), low, high)
    numbers = [number for number in NUMBERS if low <= number <= high]
    return tuple(sorted({*inner, *numbers, low, high}))


@cache
def first_blocks(block_size: int) -> tuple[int, ...]:
    """Return block ids at which slots, element offsets or the ids pass the limit of a type."""
    slots = [limit // block_size for limit in LIMITS]
    return around((0, *slots, *LIMITS, _MOST_ID), 0, _MOST_ID)


def near(number: int) -> str:
    """Return a name that a magnitude and its neighbours share."""
    return f"2^{round(log2(number))}" if number > 1 else str(number)
