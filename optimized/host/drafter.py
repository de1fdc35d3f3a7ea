"""Compute the inputs of a drafter.

Tensors are passed as address, `wide` flag (int64 if set, otherwise int32) and strides in
elements.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at, set_element, uint8_at
from .compiled import entry


@entry
def step(
    rows: int,
    padded: int,
    positions: int,
    wide_positions: bool,
    position_stride: int,
    table: int,
    wide_table: bool,
    row_stride: int,
    column_stride: int,
    width: int,
    lengths: int,
    wide_lengths: bool,
    length_stride: int,
    out_positions: int,
    wide_out: bool,
    out_stride: int,
    slots: int,
    slot_stride: int,
    block_size: int,
    max_model_len: int,
) -> None:
    """Write position, slot and length of each row's next token, then slots -1 up to `padded`."""
    for r in range(rows):
        position = element(positions, r * position_stride, wide_positions) + 1
        length = element(lengths, r * length_stride, wide_lengths) + 1
        column = position // block_size
        slot = -1
        if position >= max_model_len:
            position = 0
            length = 1
        elif column < width:
            block = element(table, r * row_stride + column * column_stride, wide_table)
            slot = block * block_size + position % block_size
        set_element(out_positions, r * out_stride, wide_out, position)
        set_element(slots, r * slot_stride, True, slot)
        set_element(lengths, r * length_stride, wide_lengths, min(length, max_model_len))
    for r in range(rows, padded):
        set_element(slots, r * slot_stride, True, -1)


@entry
def next_tokens(
    rows: int,
    width: int,
    sampled: int,
    wide: bool,
    row_stride: int,
    column_stride: int,
    discarded: int,
    discarded_stride: int,
    backup: int,
    backup_stride: int,
    vocab_size: int,
    tokens: int,
    counts: int,
) -> None:
    """Write the last valid token and the number of valid ones of each row, int32.

    `discarded` are bytes.
    """
    next_ids, valid = int32_at(tokens, rows), int32_at(counts, rows)
    for r in range(rows):
        count, last = 0, element(backup, r * backup_stride, False)
        if not uint8_at(discarded, r * discarded_stride + 1)[r * discarded_stride]:
            for column in range(width):
                at = r * row_stride + column * column_stride
                token = element(sampled, at, wide)
                if token != -1 and token < vocab_size:
                    count += 1
                    last = token
        next_ids[r] = last
        valid[r] = count


@entry
def new_slots(
    rows: int,
    offsets: int,
    wide_offsets: bool,
    offset_stride: int,
    table: int,
    wide_table: bool,
    row_stride: int,
    column_stride: int,
    width: int,
    positions: int,
    wide_positions: bool,
    position_stride: int,
    rejected: int,
    rejected_stride: int,
    block_size: int,
    more: int,
    max_model_len: int,
    out: int,
    length: int,
) -> None:
    """Write the slots of rows that each have `more` tokens than the offsets say, then -1.

    `rejected` are bytes.
    """
    slots = int64_at(out, length)
    t = 0
    for r in range(rows):
        end = element(offsets, (r + 1) * offset_stride, wide_offsets) + (r + 1) * more
        while t < end:
            position = element(positions, t * position_stride, wide_positions)
            column = position // block_size
            slots[t] = -1
            dropped = uint8_at(rejected, t * rejected_stride + 1)[t * rejected_stride]
            if not dropped and position < max_model_len and column < width:
                block = element(table, r * row_stride + column * column_stride, wide_table)
                slots[t] = block * block_size + position % block_size
            t += 1
    for i in range(t, length):
        slots[i] = -1


@entry
def expand_inputs(
    rows: int,
    offsets: int,
    wide_offsets: bool,
    offset_stride: int,
    ends: int,
    wide_ends: bool,
    end_stride: int,
    sampled: int,
    wide_sampled: bool,
    sampled_stride: int,
    tokens: int,
    wide_tokens: bool,
    token_stride: int,
    positions: int,
    wide_positions: bool,
    position_stride: int,
    out_ids: int,
    wide_ids: bool,
    id_stride: int,
    out_positions: int,
    wide_out: bool,
    out_stride: int,
    indices: int,
    wide_indices: bool,
    index_stride: int,
    mapping: int,
    wide_mapping: bool,
    mapping_stride: int,
    rejected_mask: int,
    rejected_stride: int,
    masked_mask: int,
    masked_stride: int,
    padding: int,
    parallel: int,
    slots: int,
    shift: bool,
) -> None:
    """Write the drafter's tokens of all rows; masks are bytes."""
    out = 0
    skipped = 1 if shift else 0
    for r in range(rows):
        first = element(offsets, r * offset_stride, wide_offsets)
        stop = element(offsets, (r + 1) * offset_stride, wide_offsets)
        kept = element(ends, r * end_stride, wide_ends) + 1 - first - skipped
        count = stop - first - skipped + slots
        if shift:
            for token in range(first, stop):
                place = out + token - first
                set_element(mapping, token * mapping_stride, wide_mapping, place)
        for draft in range(slots):
            at = (r * slots + draft) * index_stride
            set_element(indices, at, wide_indices, out + kept + draft)
        position = element(positions, first * position_stride, wide_positions)
        for j in range(count):
            live = j < kept + slots
            token = padding
            if j < kept:
                token = element(tokens, (first + skipped + j) * token_stride, wide_tokens)
            elif j == kept:
                token = element(sampled, r * sampled_stride, wide_sampled)
            elif live:
                token = parallel
            set_element(out_ids, out * id_stride, wide_ids, token)
            set_element(out_positions, out * out_stride, wide_out, position + j if live else 0)
            lost, drafted = out * rejected_stride, out * masked_stride
            uint8_at(rejected_mask, lost + 1)[lost] = 0 if live else 1
            uint8_at(masked_mask, drafted + 1)[drafted] = 1 if live and j > kept else 0
            out += 1
