"""Compute the cache slots of one sequence's tokens, for first-generation (V0) engines.

SPEC.md section 5. `slot_mapping` holds the form for a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Final

import numpy as np

from attnproof.reference import shared
from attnproof.reference.checks.common import check_bool, check_int, check_list
from attnproof.reference.checks.slots import check_block_row, check_blocks, check_range
from attnproof.reference.interface import PAD_SLOT_ID

from .checking import checks
from .host import slot_mapping as loops

__all__ = [
    "_compute_slot_mapping_numpy",
    "_compute_slot_mapping_python",
    "compute_slot_mapping",
    "compute_slot_mapping_start_idx",
    "is_block_tables_empty",
]

_checked = checks.follow(globals())

_FEW_BLOCKS: Final = 2
"""Blocks up to which one `range` per block is faster than a compiled loop and a `tolist`."""


def compute_slot_mapping_start_idx(
    is_prompt: bool, query_len: int, context_len: int, sliding_window: int | None
) -> int:
    """Return the first position, in tokens, that gets a slot.

    Result and errors as in `reference`. SPEC.md section 5.
    """
    if _checked:
        return shared.compute_slot_mapping_start_idx(
            is_prompt, query_len, context_len, sliding_window
        )
    if not is_prompt or sliding_window is None or query_len <= sliding_window:
        return 0
    return query_len - sliding_window


def is_block_tables_empty(block_tables: Mapping[int, Sequence[int] | None] | None) -> bool:
    """True for None and for a dict whose values are all None.

    Errors as in `reference`. SPEC.md section 5.
    """
    if _checked:
        return shared.is_block_tables_empty(block_tables)
    if block_tables is None:
        return True
    for table in block_tables.values():  # noqa: SIM110 - a generator costs as much as 8 tables
        if table is not None:
            return False
    return True


def compute_slot_mapping(
    is_profile_run: bool,
    slot_mapping: list[int],
    seq_id: int,
    seq_len: int,
    context_len: int,
    start_idx: int,
    block_size: int,
    block_tables: Mapping[int, Sequence[int]] | None,
) -> None:
    """Append the slots of one sequence's query tokens to the list `slot_mapping`.

    Positions [context_len, seq_len) get `block * block_size + offset`, those before
    `start_idx` get -1; a profile run gets `seq_len` times -1. Appended values are
    Python ints. Errors are those of `reference` and leave the list unchanged. SPEC.md
    section 5.
    """
    is_one_token = is_profile_run is False and type(seq_len) is type(context_len) is int
    is_one_token = is_one_token and seq_len == context_len + 1
    if is_one_token and _append_one(
        slot_mapping, seq_id, context_len, start_idx, block_size, block_tables
    ):
        return
    operation = "compute_slot_mapping"
    if type(is_profile_run) is not bool or not isinstance(slot_mapping, list):
        check_bool(operation, "is_profile_run", is_profile_run)
        check_list(operation, "slot_mapping", slot_mapping)
    check_int(operation, "seq_len", seq_len, 0)
    if is_profile_run:
        slot_mapping.extend([PAD_SLOT_ID] * seq_len)
        return
    check_int(operation, "context_len", context_len, 0)
    check_int(operation, "start_idx", start_idx, 0)
    check_int(operation, "block_size", block_size, 1)
    first = max(start_idx, context_len)
    blocks = check_block_row(operation, block_tables, seq_id, first, seq_len, block_size)
    slots = [PAD_SLOT_ID] * (start_idx - context_len)
    few = seq_len - first <= _FEW_BLOCKS * block_size
    extend = _extend_by_block if few else _extend_at_once
    if not extend(slots, blocks, first, seq_len, block_size):
        check_blocks(operation, "block_tables", blocks, first, seq_len, block_size)
        _extend_by_block(slots, blocks, first, seq_len, block_size)
    slot_mapping.extend(slots)


def _append_one(
    slots: list[int],
    seq_id: int,
    position: int,
    start_idx: int,
    block_size: int,
    block_tables: Any,
) -> bool:
    """Append the slot of one token; return False if an argument may be malformed.

    Most sequences have one token; `compute_slot_mapping` handles and checks all others.
    """
    if not type(position) is type(start_idx) is type(block_size) is int or type(slots) is not list:
        return False
    if not 0 <= start_idx <= position or block_size < 1 or type(block_tables) is not dict:
        return False
    try:
        block = block_tables[seq_id][position // block_size]
    except (LookupError, TypeError):
        return False  # malformed: `compute_slot_mapping` raises the error
    if type(block) is not int or block < 0:
        return False
    slots.append(block * block_size + position % block_size)
    return True


def _compute_slot_mapping_python(
    slot_mapping: list[int],
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Append the slots of positions [range_start, range_end), one block at a time."""
    if not _checked:
        if range_end == range_start + 1:
            block = index(block_table[range_start // block_size])
            slot_mapping.append(block * block_size + range_start % block_size)
        else:
            _extend_by_block(slot_mapping, block_table, range_start, range_end, block_size)
        return
    operation = "_compute_slot_mapping_python"
    check_list(operation, "slot_mapping", slot_mapping)
    check_range(operation, block_table, range_start, range_end, block_size)
    slots: list[int] = []
    if not _extend_by_block(slots, block_table, range_start, range_end, block_size):
        check_blocks(operation, "block_table", block_table, range_start, range_end, block_size)
    slot_mapping.extend(slots)


def _compute_slot_mapping_numpy(
    slot_mapping: list[int],
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Append the slots of positions [range_start, range_end), computed as one numpy array."""
    operation = "_compute_slot_mapping_numpy"
    if _checked:
        check_list(operation, "slot_mapping", slot_mapping)
        check_range(operation, block_table, range_start, range_end, block_size)
    if not _extend_at_once(slot_mapping, block_table, range_start, range_end, block_size):
        check_blocks(operation, "block_table", block_table, range_start, range_end, block_size)
        _extend_by_block(slot_mapping, block_table, range_start, range_end, block_size)


def _extend_by_block(
    slots: list[int], blocks: Sequence[int], first: int, end: int, block_size: int
) -> bool:
    """Extend `slots` by one `range` per block.

    Return False for a malformed block id, after slots of earlier blocks were added.
    """
    position = first
    try:
        while position < end:
            column, offset = divmod(position, block_size)
            run = min(block_size - offset, end - position)
            slot = index(blocks[column]) * block_size + offset
            if slot < 0:
                return False
            slots.extend(range(slot, slot + run))
            position += run
    except TypeError:
        return False
    return True


def _extend_at_once(
    slots: list[int], blocks: Sequence[int], first: int, end: int, block_size: int
) -> bool:
    """Extend `slots` by one compiled loop over the blocks of the positions.

    Return False for a malformed block id, before any slot is added.
    """
    if first >= end:
        return True
    touched = np.asarray(blocks[first // block_size : (end - 1) // block_size + 1])
    if touched.dtype.kind != "i":
        return False
    filled = np.empty(end - first, np.int64)
    if not loops.fill_range(touched.astype(np.int64, copy=False), first, block_size, filled):
        return False
    slots.extend(filled.tolist())
    return True
