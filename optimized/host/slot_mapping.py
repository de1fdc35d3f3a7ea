"""Compute the slots of tokens, one run of consecutive slots a block.

The batch form takes addresses: of dense offsets and lengths, each int64 if its `wide` flag
is set and int32 otherwise, and of a table with its strides.
"""

from __future__ import annotations

from .addresses import element, int64_at
from .arrays import Array
from .compiled import compiled, entry


@entry
def count_tokens(rows: int, starts: int, wide_starts: bool, computed: int, wide: bool) -> int:
    """Return the number of query tokens; -1 if offsets or computed lengths are malformed."""
    tokens = element(starts, 0, wide_starts)
    if tokens != 0:
        return -1
    for r in range(rows):
        end = element(starts, r + 1, wide_starts)
        if end < tokens or element(computed, r, wide) < 0:
            return -1
        tokens = end
    return tokens


@entry
def fill_slots(
    rows: int,
    starts: int,
    wide_starts: bool,
    computed: int,
    wide_computed: bool,
    start_idx: int,
    wide_start_idx: bool,
    table: int,
    wide_table: bool,
    width: int,
    row_stride: int,
    column_stride: int,
    block_size: int,
    out: int,
    length: int,
    may_overlap: bool,
) -> bool:
    """Write the slots of all tokens, then -1, to `out`: `length` int64.

    Positions before `start_idx` and beyond the `width` of the table get -1. Return False
    without writing if `out` may overlap the memory of an input, and does.
    """
    span = 1 + (rows - 1) * row_stride + (width - 1) * column_stride if rows and width else 0
    stop = out + 8 * length
    if may_overlap and (
        overlap(out, stop, starts, rows + 1, wide_starts)
        or overlap(out, stop, computed, rows, wide_computed)
        or overlap(out, stop, start_idx, rows, wide_start_idx)
        or overlap(out, stop, table, span, wide_table)
    ):
        return False
    slots = int64_at(out, length)
    i = 0
    for r in range(rows):
        end = element(starts, r + 1, wide_starts)
        position = element(computed, r, wide_computed)
        masked = min(end - i, max(0, element(start_idx, r, wide_start_idx) - position))
        for t in range(i, i + masked):
            slots[t] = -1
        i += masked
        position += masked
        column = position // block_size
        offset = position - column * block_size
        if i + 1 == end and column < width:  # one token left: most rows are decodes
            block = element(table, r * row_stride + column * column_stride, wide_table)
            slots[i] = block * block_size + offset
            i = end
        while i < end and column < width:
            run = min(block_size - offset, end - i)
            block = element(table, r * row_stride + column * column_stride, wide_table)
            slot = block * block_size + offset
            part = slots[i : i + run]  # a view: indexed from 0, the loop vectorises
            for t in range(run):
                part[t] = slot + t
            i += run
            column += 1
            offset = 0
        for t in range(i, end):
            slots[t] = -1
        i = end
    for t in range(i, length):
        slots[t] = -1
    return True


@entry
def fill_rank_slots(
    size: int,
    rank: int,
    interleave: int,
    rows: int,
    starts: int,
    wide_starts: bool,
    computed: int,
    wide_computed: bool,
    start_idx: int,
    wide_start_idx: bool,
    table: int,
    wide_table: bool,
    width: int,
    row_stride: int,
    column_stride: int,
    block_size: int,
    out: int,
    length: int,
    may_overlap: bool,
) -> bool:
    """Write the slots of the tokens that a rank of `size` ranks owns, and -1 for all others.

    Positions before `start_idx` and beyond the `width` of the table get -1. Return False
    without writing if `out` may overlap the memory of an input, and does.
    """
    span = 1 + (rows - 1) * row_stride + (width - 1) * column_stride if rows and width else 0
    stop = out + 8 * length
    if may_overlap and (
        overlap(out, stop, starts, rows + 1, wide_starts)
        or overlap(out, stop, computed, rows, wide_computed)
        or overlap(out, stop, start_idx, rows, wide_start_idx)
        or overlap(out, stop, table, span, wide_table)
    ):
        return False
    slots = int64_at(out, length)
    for t in range(length):
        slots[t] = -1
    for r in range(rows):
        token = element(starts, r, wide_starts)
        first = element(computed, r, wide_computed)
        end = first + element(starts, r + 1, wide_starts) - token
        kept = max(first, element(start_idx, r, wide_start_idx))
        turn = kept // (size * interleave)
        while True:
            begin = (turn * size + rank) * interleave  # of the rank's positions in this turn
            column = turn * interleave // block_size
            if begin >= end or column >= width:
                break
            block = element(table, r * row_stride + column * column_stride, wide_table)
            slot = block * block_size + turn * interleave - column * block_size - begin
            for position in range(max(begin, kept), min(begin + interleave, end)):
                slots[token + position - first] = slot + position
            turn += 1
    return True


@compiled
def overlap(start: int, stop: int, address: int, length: int, wide: bool) -> bool:
    """True if one of the `length` integers at `address` is within bytes [start, stop)."""
    return length > 0 and address < stop and start < address + length * (8 if wide else 4)


@compiled
def fill_range(blocks: Array, first: int, block_size: int, out: Array) -> bool:
    """Write the slots of as many positions as `out` has, from `first` on.

    `blocks` starts with the block of position `first`. Return False for a negative block
    id.
    """
    offset, i, column = first % block_size, 0, 0
    while i < out.shape[0]:
        block = blocks[column]
        if block < 0:
            return False
        run = min(block_size - offset, out.shape[0] - i)
        slot = block * block_size + offset
        slots = out[i : i + run]  # a view: indexed from 0, the loop vectorises
        for t in range(run):
            slots[t] = slot + t
        i += run
        column += 1
        offset = 0
    return True
