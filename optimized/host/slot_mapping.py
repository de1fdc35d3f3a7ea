"""The slots of a batch's tokens, block by block."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def count_tokens(offsets: Array, computed: Array) -> int:
    """Number of query tokens; -1 if offsets or lengths are malformed."""
    if offsets[0] != 0:
        return -1
    for r in range(computed.shape[0]):
        if offsets[r + 1] < offsets[r] or computed[r] < 0:
            return -1
    return int(offsets[-1])


@compiled
def fill_slots(
    offsets: Array,
    computed: Array,
    start_idx: Array,
    table: Array,
    row_stride: int,
    column_stride: int,
    width: int,
    block_size: int,
    out: Array,
) -> None:
    """Write every token's slot and -1 behind the last token.

    -1 as well before `start_idx` and beyond the table's `width`; `table` is flat.
    """
    for r in range(computed.shape[0]):
        i, end = offsets[r], offsets[r + 1]
        masked = min(end, i + max(0, start_idx[r] - computed[r]))
        position = computed[r] + (masked - i)
        for t in range(i, masked):
            out[t] = -1
        i = masked
        column, offset = position // block_size, position % block_size
        while i < end and column < width:
            run = min(block_size - offset, end - i)
            block = table[r * row_stride + column * column_stride]
            slot = block * block_size + offset
            slots = out[i : i + run]  # indexed from 0, so that the loop vectorises
            for t in range(run):
                slots[t] = slot + t
            i += run
            column += 1
            offset = 0
        for t in range(i, end):
            out[t] = -1
    for t in range(offsets[-1], out.shape[0]):
        out[t] = -1


@compiled
def fill_range(blocks: Array, first: int, block_size: int, out: Array) -> bool:
    """Write the slots of `out`'s positions from `first` on; False for a negative block id.

    `blocks` begins with the block that holds position `first`.
    """
    offset, i, column = first % block_size, 0, 0
    while i < out.shape[0]:
        block = blocks[column]
        if block < 0:
            return False
        run = min(block_size - offset, out.shape[0] - i)
        slot = block * block_size + offset
        slots = out[i : i + run]  # indexed from 0, so that the loop vectorises
        for t in range(run):
            slots[t] = slot + t
        i += run
        column += 1
        offset = 0
    return True
