"""Gather rows of block tables by request slot, and compute the slots of their tokens.

All arguments are sizes, flags and addresses: `mapping` of int64 if `wide` and of int32
otherwise, positions and slots of int64, everything else of int32.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at
from .compiled import entry


@entry
def gather_rows(
    table: int,
    width: int,
    num_blocks: int,
    mapping: int,
    wide: bool,
    rows: int,
    padded: int,
    out: int,
) -> None:
    """Write the live blocks of each row's slot and then 0, for `padded` rows of `width`."""
    for r in range(padded):
        to = int32_at(out + 4 * r * width, width)
        count = 0
        slot = element(mapping, r, wide) if r < rows else -1
        if slot >= 0:
            count = element(num_blocks, slot, False)
            blocks = int32_at(table + 4 * slot * width, width)
            for i in range(count):
                to[i] = blocks[i]
        for i in range(count, width):
            to[i] = 0


@entry
def fill_group(
    rows: int,
    mapping: int,
    wide: bool,
    starts: int,
    positions: int,
    table: int,
    width: int,
    num_blocks: int,
    block_size: int,
    ranks: int,
    rank: int,
    turn: int,
    out: int,
    length: int,
) -> None:
    """Write the slots of one group's tokens, then -1, to `out`: `length` int64.

    `ranks` is 1 for a group that is not sharded.
    """
    slots = int64_at(out, length)
    i = 0
    for r in range(rows):
        end = element(starts, r + 1, False)
        slot = element(mapping, r, wide)
        if slot < 0 or end == i:
            for t in range(i, end):
                slots[t] = -1
            i = end
            continue
        live = element(num_blocks, slot, False)
        blocks = int32_at(table + 4 * slot * width, width)
        token_positions = int64_at(positions, end)
        for t in range(i, end):
            position = token_positions[t]
            owned = True
            if ranks > 1:
                owned = position // turn % ranks == rank
                position = position // (turn * ranks) * turn + position % turn
            column = position // block_size
            if owned and column < live:
                slots[t] = blocks[column] * block_size + (position - column * block_size)
            else:
                slots[t] = -1
        i = end
    for t in range(i, length):
        slots[t] = -1
