"""Count and place the positions that one rank of context parallelism owns.

Tensors are given as address, stride in elements and `wide`: True for int64, False for int32.
"""

from __future__ import annotations

from .addresses import element, set_element
from .compiled import compiled, entry


@entry
def count_owned(
    rows: int,
    lens: int,
    lens_stride: int,
    wide: bool,
    started: bool,
    starts: int,
    starts_stride: int,
    wide_starts: bool,
    size: int,
    rank: int,
    interleave: int,
    out: int,
) -> None:
    """Write the number of owned positions of each range to `out`, in the dtype of the lengths."""
    for r in range(rows):
        first = element(starts, r * starts_stride, wide_starts) if started else 0
        end = first + element(lens, r * lens_stride, wide)
        share = owned_before(end, size, rank, interleave)
        set_element(out, r, wide, share - owned_before(first, size, rank, interleave))


@entry
def localize(
    count: int, indices: int, wide: bool, size: int, rank: int, interleave: int, out: int
) -> None:
    """Write the rank's index of `count` dense positions, -1 for those of other ranks."""
    for i in range(count):
        position = element(indices, i, wide)
        turn = position // interleave
        index = -1
        if position >= 0 and turn % size == rank:
            index = turn // size * interleave + position % interleave
        set_element(out, i, wide, index)


@compiled
def owned_before(end: int, size: int, rank: int, interleave: int) -> int:
    """Return the number of positions in [0, end) that the rank owns."""
    turns = end // (size * interleave)
    rest = end - turns * (size * interleave)
    return turns * interleave + min(max(rest - rank * interleave, 0), interleave)
