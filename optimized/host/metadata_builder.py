"""Block tables of different lengths as one rectangle."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def fill_rectangle(blocks: Array, lengths: Array, width: int, out: Array) -> None:
    """Row r of the flat `out` is the next `lengths[r]` of `blocks`, then 0.

    Rows behind the last length are 0 as well.
    """
    place, taken = 0, 0
    for r in range(lengths.shape[0]):
        length = lengths[r]
        row = out[place : place + width]  # indexed from 0, so that the loop vectorises
        ids = blocks[taken : taken + length]
        for column in range(length):
            row[column] = ids[column]
        for column in range(length, width):
            row[column] = 0
        place += width
        taken += length
    for index in range(place, out.shape[0]):
        out[index] = 0
