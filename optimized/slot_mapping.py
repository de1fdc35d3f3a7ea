"""Where each token's key and value go in the cache (SPEC.md section 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Final, NamedTuple

import numpy as np
import torch

from reference.interface import PAD_SLOT_ID
from reference.interface.checks import check_bool, check_int, check_list
from reference.interface.checks_slots import (
    check_block_row,
    check_blocks,
    check_range,
    check_slot_mapping,
    overlap,
)

from .dispatch import on_device
from .host.arrays import array, common_dtype, flat_table
from .host.slot_mapping import count_tokens, fill_range, fill_slots

_INT32: Final = torch.int32
_INT64: Final = torch.int64
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
    if not fill_range(touched.astype(np.int64, copy=False), first, block_size, filled):
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
    batch = _Batch(
        query_start_loc,
        num_computed_tokens,
        block_table,
        block_size,
        num_padded_tokens,
        start_idx,
        out,
    )
    if not _fits(batch) or on_device(query_start_loc):
        check_slot_mapping(*batch)
    slots = _on_device(batch) if on_device(query_start_loc) else _on_host(batch)
    if num_padded_tokens is None or num_padded_tokens == slots.shape[0]:
        return slots
    return slots[:num_padded_tokens]


class _Batch(NamedTuple):
    """The arguments of `build_slot_mapping`, in the order of its shared check."""

    query_start_loc: torch.Tensor
    num_computed: torch.Tensor
    table: torch.Tensor
    block_size: int
    num_padded: int | None
    start_idx: torch.Tensor | None
    out: torch.Tensor | None


def _fits(batch: _Batch) -> bool:
    """Whether types, shapes, dtypes and CPU devices are certainly right, found out cheaply.

    Where this says no, the shared check decides and names the field.
    """
    starts, computed, table, block_size, num_padded, start_idx, out = batch
    if not (_integers(table) and table.ndim == 2 and _integers(starts) and _integers(computed)):
        return False
    if not ((start_idx is None or _integers(start_idx)) and (out is None or _integers(out))):
        return False
    rows = table.shape[0]
    return (
        type(block_size) is int
        and block_size > 0
        and starts.shape == (rows + 1,)
        and computed.shape == (rows,)
        and (start_idx is None or start_idx.shape == (rows,))
        and (out is None or (out.ndim == 1 and out.dtype is torch.int64 and _apart(batch, out)))
        and (num_padded is None or (type(num_padded) is int and num_padded >= 0))
    )


def _integers(tensor: object) -> bool:
    if type(tensor) is not torch.Tensor or not tensor.is_cpu:
        return False
    return tensor.dtype is _INT32 or tensor.dtype is _INT64


def _apart(batch: _Batch, out: torch.Tensor) -> bool:
    """Whether no input lies in the memory of `out`; mostly their addresses alone show that."""
    start = out.data_ptr()
    stop = start + out.nbytes if out.is_contiguous() else math.inf
    for tensor in (batch[0], batch[1], batch[2], batch[5]):
        if tensor is None:
            continue
        first = tensor.data_ptr()
        if first >= stop or (first + tensor.nbytes <= start and tensor.is_contiguous()):
            continue
        if overlap(tensor, out):
            return False
    return True


def _on_device(batch: _Batch) -> torch.Tensor:
    out = batch.out
    if out is None:
        length = batch.num_padded
        if length is None:
            length = int(batch.query_start_loc[-1])
        out = torch.empty(length, dtype=torch.int64, device=batch.query_start_loc.device)

    from .kernels.slot_mapping import write_slots

    write_slots(*batch[:4], batch.start_idx, out)
    return out


def _on_host(batch: _Batch) -> torch.Tensor:
    first_kept = batch.num_computed if batch.start_idx is None else batch.start_idx
    dtype = common_dtype(batch.query_start_loc, batch.num_computed, first_kept)
    starts, computed = array(batch.query_start_loc, dtype), array(batch.num_computed, dtype)
    tokens, out = count_tokens(starts, computed), batch.out
    length = tokens if batch.num_padded is None else batch.num_padded
    if tokens < 0 or length < tokens or (out is not None and out.shape[0] < max(length, tokens)):
        check_slot_mapping(*batch)
    if out is None:
        out = torch.empty(length, dtype=torch.int64)
    filled = out if out.is_contiguous() else torch.empty(out.shape[0], dtype=torch.int64)
    fill_slots(
        starts,
        computed,
        computed if batch.start_idx is None else array(first_kept, dtype),
        *flat_table(batch.table),
        batch.table.shape[1],
        batch.block_size,
        filled.numpy(),
    )
    return out if filled is out else out.copy_(filled)
