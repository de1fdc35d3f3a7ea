"""Where each token's key and value go in the cache (SPEC.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Final

import numpy as np
import torch

from attnproof.reference.checks.common import check_bool, check_int, check_list
from attnproof.reference.checks.slots import (
    check_block_row,
    check_blocks,
    check_range,
    check_slot_mapping,
)
from attnproof.reference.interface import PAD_SLOT_ID

from .dispatch import INTERPRETED, on_device
from .host import slot_mapping as loops

__all__ = [
    "_compute_slot_mapping_numpy",
    "_compute_slot_mapping_python",
    "build_slot_mapping",
    "compute_slot_mapping",
]

_TENSOR, _INT64 = torch.Tensor, torch.int64
_WIDE: Final = {torch.int32: False, torch.int64: True}
_NO_SLOTS: Final = torch.empty(0, dtype=torch.int64)
"""Its `new_empty` makes slots for three quarters of what `torch.empty` with a dtype takes."""
_FEW_BLOCKS: Final = 2
"""Blocks up to which one `range` per block beats a loop into an array that becomes a list."""


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
    Python ints. Errors as in `reference`, with the list as it was. SPEC.md section 5.
    """
    one = is_profile_run is False and type(seq_len) is type(context_len) is int
    one = one and seq_len == context_len + 1
    if one and _append_one(slot_mapping, seq_id, context_len, start_idx, block_size, block_tables):
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
    """Append the slot of one well-formed token, as most sequences have; False for any other."""
    if not type(position) is type(start_idx) is type(block_size) is int or type(slots) is not list:
        return False
    if not 0 <= start_idx <= position or block_size < 1 or type(block_tables) is not dict:
        return False
    try:
        block = block_tables[seq_id][position // block_size]
    except (LookupError, TypeError):
        return False  # it gets its error the long way
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
    """Append the slots of positions [range_start, range_end), block by block."""
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
    """Append the slots of positions [range_start, range_end), all at once."""
    operation = "_compute_slot_mapping_numpy"
    check_list(operation, "slot_mapping", slot_mapping)
    check_range(operation, block_table, range_start, range_end, block_size)
    if not _extend_at_once(slot_mapping, block_table, range_start, range_end, block_size):
        check_blocks(operation, "block_table", block_table, range_start, range_end, block_size)
        _extend_by_block(slot_mapping, block_table, range_start, range_end, block_size)


def _extend_by_block(
    slots: list[int], blocks: Sequence[int], first: int, end: int, block_size: int
) -> bool:
    """One `range` per block: consecutive slots. False, some of them added, for a bad block id."""
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
    """One compiled loop over the blocks that are touched. False, nothing added, for a bad id."""
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


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    *,
    num_padded_tokens: int | None = None,
    start_idx: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cache slots of all query tokens of a batch, int64, on the inputs' device.

    `query_start_loc` (R+1,), `num_computed_tokens` (R,), `start_idx` (R,) and
    `block_table` (R, W) are int32 or int64; `block_size` is in tokens. -1 before
    `start_idx`, beyond column W, behind the last token and in the whole tail of `out`.
    Result, length and errors as in `reference`. On a device: one kernel, and a sync
    only if neither `num_padded_tokens` nor `out` gives the length. SPEC.md section 5.
    """
    batch = (
        query_start_loc,
        num_computed_tokens,
        block_table,
        block_size,
        num_padded_tokens,
        start_idx,
        out,
    )
    slots = None if INTERPRETED else _by_loops(*batch)
    if slots is None:
        check_slot_mapping(*batch)
        slots = (_on_device if on_device(query_start_loc) else _made_dense)(*batch)
    if out is None or num_padded_tokens is None:
        return slots
    return slots[:num_padded_tokens]


def _by_loops(
    starts: torch.Tensor,
    computed: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    num_padded: int | None,
    start_idx: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor | None:
    """Slots of a well-formed batch of dense CPU tensors; None wherever there is doubt.

    Looking at the tensors is most of what a few decodes cost: each property is read
    once, and the loops get addresses.
    """
    if not type(starts) is type(table) is _TENSOR or table.ndim != 2 or not table.is_cpu:
        return None
    rows, width = table.shape
    if starts.shape != (rows + 1,) or not starts.is_cpu or not starts.is_contiguous():
        return None
    wide_starts, wide_table = _WIDE.get(starts.dtype), _WIDE.get(table.dtype)
    wide = _wide_row(computed, rows)
    kept, wide_kept = computed, wide
    if start_idx is not None:
        kept, wide_kept = start_idx, _wide_row(start_idx, rows)
    if wide_starts is None or wide is None or wide_kept is None or wide_table is None:
        return None
    if type(block_size) is not int or block_size < 1:
        return None
    starts_at, computed_at = starts.data_ptr(), computed.data_ptr()
    tokens = loops.count_tokens(rows, starts_at, wide_starts, computed_at, wide)
    slots = _room(tokens, num_padded, out)
    if slots is None:
        return None
    row_stride, column_stride = table.stride()
    filled = loops.fill_slots(
        rows,
        starts_at,
        wide_starts,
        computed_at,
        wide,
        kept.data_ptr(),
        wide_kept,
        table.data_ptr(),
        wide_table,
        width,
        row_stride,
        column_stride,
        block_size,
        slots.data_ptr(),
        slots.numel(),
    )
    return slots if filled else None


def _wide_row(lengths: torch.Tensor, rows: int) -> bool | None:
    """Whether a dense CPU tensor of one length a request holds int64; None if it is none."""
    if type(lengths) is not _TENSOR or lengths.shape != (rows,) or not lengths.is_cpu:
        return None
    return _WIDE.get(lengths.dtype) if lengths.is_contiguous() else None


def _room(tokens: int, num_padded: int | None, out: torch.Tensor | None) -> torch.Tensor | None:
    """Dense memory on the CPU for that many slots; None if `out` is none, or they do not fit."""
    length = tokens if num_padded is None else num_padded
    if type(length) is not int or not 0 <= tokens <= length:
        return None
    if out is None:
        return _NO_SLOTS.new_empty(length)
    if type(out) is not _TENSOR or not out.is_cpu or out.dtype is not _INT64 or out.ndim != 1:
        return None
    return out if out.is_contiguous() and length <= out.numel() else None


def _on_device(
    starts: torch.Tensor,
    computed: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    num_padded: int | None,
    start_idx: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    if out is None:
        length = int(starts[-1]) if num_padded is None else num_padded
        out = torch.empty(length, dtype=torch.int64, device=starts.device)

    from .kernels.slot_mapping import write_slots

    write_slots(starts, computed, table, block_size, start_idx, out)
    return out


def _made_dense(
    starts: torch.Tensor,
    computed: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    num_padded: int | None,
    start_idx: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Slots of a batch of strided tensors or of a subclass, of which copies are taken."""
    starts, computed = _plain(starts).contiguous(), _plain(computed).contiguous()
    start_idx = None if start_idx is None else _plain(start_idx).contiguous()
    length = num_padded if out is None else out.shape[0]
    slots = _by_loops(starts, computed, _plain(table), block_size, length, start_idx, None)
    assert slots is not None  # the shared check has passed
    return slots if out is None else out.copy_(slots)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)
