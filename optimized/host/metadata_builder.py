"""Write block tables of different lengths into one rectangle."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def fill_rectangle(blocks: Array, lengths: Array, width: int, out: Array) -> None:
    """Write the next `lengths[r]` of `blocks`, then 0, to row r of the flat `out`.

    Rows after the last length get 0.
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
