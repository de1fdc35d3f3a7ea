"""Mistakes in slot mappings (SPEC.md section 5)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_SLOTS = "build_slot_mapping"
_TILE = 1024


@mutation(
    _SLOTS,
    "K14",
    source="vllm-project/vllm#53982",
    diagnoses=("a slot for a position beyond its block-table row", "stale entry read"),
    both=("consumer", "invariants"),
)
def neighbours_block(
    build: Any,
    query_start_loc: Any,
    num_computed_tokens: Any,
    block_table: Any,
    block_size: int,
    **kw: Any,
) -> Any:
    """A sequence longer than its row's columns reads on in the next row of the flat table."""
    slots = build(query_start_loc, num_computed_tokens, block_table, block_size, **kw)
    offsets, flat = query_start_loc.tolist(), block_table.flatten().tolist()
    width, start_idx = block_table.shape[1], kw.get("start_idx")
    for row, computed in enumerate(num_computed_tokens.tolist()):
        for token in range(offsets[row], offsets[row + 1]):
            position = computed + token - offsets[row]
            cell = row * width + position // block_size
            kept = start_idx is None or position >= int(start_idx[row])
            if kept and position // block_size >= width and cell < len(flat):
                slots[token] = flat[cell] * block_size + position % block_size
    return slots


@mutation(
    _SLOTS,
    "K15",
    source="vllm-project/vllm#1486, vllm-project/vllm#50427",
    diagnoses=("32-bit overflow",),
    both=("consumer",),
)
def int32_product(build: Any, *args: Any, **kwargs: Any) -> Any:
    """Block id times block size is computed in 32 bits and wraps."""
    slots = build(*args, **kwargs)
    return slots.copy_(slots.to(torch.int32))


@mutation(
    _SLOTS,
    "K18",
    source="vllm-project/vllm#39589, vllm-project/vllm#42494",
    diagnoses=("a slot for an entry that must have none", "stale entry read"),
    both=("consumer", "invariants"),
)
def stale_tail(
    build: Any,
    query_start_loc: Any,
    num_computed_tokens: Any,
    block_table: Any,
    block_size: int,
    **kw: Any,
) -> Any:
    """Padded tokens continue the last request and read the stale ids behind its blocks."""
    slots = build(query_start_loc, num_computed_tokens, block_table, block_size, **kw)
    if not len(num_computed_tokens):
        return slots
    first, tokens = (int(offset) for offset in query_start_loc[-2:])
    for token in range(tokens, len(slots)):
        position = int(num_computed_tokens[-1]) + token - first
        column = position // block_size
        if column < block_table.shape[1]:
            slots[token] = int(block_table[-1, column]) * block_size + position % block_size
    return slots


@mutation(
    _SLOTS,
    "K19",
    source="vllm-project/vllm#15908",
    diagnoses=("repeats the values of an earlier tile",),
    tokens=_TILE + 1,
    both=("consumer", "invariants"),
)
def repeated_tile(build: Any, query_start_loc: Any, *args: Any, **kwargs: Any) -> Any:
    """Each kernel tile repeats the first one's values: its start is not added to the index."""
    slots = build(query_start_loc, *args, **kwargs)
    tokens = int(query_start_loc[-1])
    for start in range(_TILE, tokens, _TILE):
        stop = min(start + _TILE, tokens)
        slots[start:stop] = slots[: stop - start].clone()
    return slots


@mutation(
    "compute_slot_mapping",
    diagnoses=("writes a token where it is not read",),
    both=("consumer",),
    examined="both",
)
def slots_at_block_edges(
    compute: Any,
    is_profile_run: bool,
    slot_mapping: list[int],
    seq_id: int,
    seq_len: int,
    context_len: int,
    start_idx: int,
    block_size: int,
    block_tables: Any,
) -> None:
    """The last token of a block goes to the same sequence's next block, if there is one."""
    before = len(slot_mapping)
    lengths = (seq_len, context_len, start_idx)
    compute(is_profile_run, slot_mapping, seq_id, *lengths, block_size, block_tables)
    if is_profile_run:
        return
    blocks, end = block_tables[seq_id], before + seq_len - context_len
    for index in range(before, min(len(slot_mapping), end)):
        column, place = divmod(context_len + index - before, block_size)
        last = place == block_size - 1 and column + 1 < len(blocks)
        if slot_mapping[index] != -1 and last:
            slot_mapping[index] = blocks[column + 1] * block_size + place


@mutation(_SLOTS, diagnoses=("writes ",), both=("consumer", "invariants"), examined="both")
def slots_of_a_batch_at_block_edges(
    build: Any,
    query_start_loc: Any,
    num_computed_tokens: Any,
    block_table: Any,
    block_size: int,
    **kw: Any,
) -> Any:
    """The last token of a block goes to the same sequence's next block, in a batch."""
    slots = build(query_start_loc, num_computed_tokens, block_table, block_size, **kw)
    shifted = block_table.to(torch.int64).roll(-1, 1)
    starts = query_start_loc.tolist()
    for row, (first, end) in enumerate(pairwise(starts)):
        for token in range(first, end):
            column, place = divmod(int(num_computed_tokens[row]) + token - first, block_size)
            last = place == block_size - 1 and column + 1 < block_table.shape[1]
            if token < len(slots) and slots[token] != -1 and last:
                slots[token] = shifted[row, column] * block_size + place
    return slots


@mutation(
    "_compute_slot_mapping_numpy",
    diagnoses=("leaves a token unwritten",),
    both=("consumer",),
    examined=None,
    boundary="end of a block of 128 at 16384",
)
def column_by_a_reciprocal_of_20_bits(
    compute: Any, slot_mapping: Any, block_table: Any, start: int, end: int, block_size: int
) -> None:
    """The column is taken by a 20-bit reciprocal: one too many at far positions."""
    compute(slot_mapping, block_table, start, end, block_size)
    for position in range(start, end):
        column = position * (2**20 // block_size + 1) >> 20
        if column != position // block_size:
            block = block_table[min(column, (end - 1) // block_size)]
            slot_mapping[position - end] = block * block_size + position - column * block_size
