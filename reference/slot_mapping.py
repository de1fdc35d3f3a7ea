"""Compute the cache slot of each token's key and value (SPEC.md section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch

from .checks.common import check_bool, check_int, check_list
from .checks.slots import check_block_row, check_blocks, check_range
from .definition.definition import operation
from .definition.roles import Array, BlockSize, ComputedLens, Int, Offsets, of_shapes
from .interface import PAD_SLOT_ID

__all__ = [
    "_compute_slot_mapping_numpy",
    "_compute_slot_mapping_python",
    "build_slot_mapping",
    "compute_slot_mapping",
]


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
    Python ints. Errors leave the list unchanged: MetadataError for a position beyond the
    sequence's blocks, for negative lengths and for a negative block id; TypeError for a
    block id that is not an integer. SPEC.md section 5.
    """
    name = "compute_slot_mapping"
    check_bool(name, "is_profile_run", is_profile_run)
    check_list(name, "slot_mapping", slot_mapping)
    check_int(name, "seq_len", seq_len, 0)
    if is_profile_run:
        slot_mapping.extend([PAD_SLOT_ID] * seq_len)
        return
    check_int(name, "context_len", context_len, 0)
    check_int(name, "start_idx", start_idx, 0)
    check_int(name, "block_size", block_size, 1)
    first = max(start_idx, context_len)
    block_table = check_block_row(name, block_tables, seq_id, first, seq_len, block_size)
    check_blocks(name, "block_tables", block_table, first, seq_len, block_size)
    slots = [PAD_SLOT_ID] * max(0, start_idx - context_len)
    _compute_slot_mapping_python(slots, block_table, first, seq_len, block_size)
    slot_mapping.extend(slots)


def _compute_slot_mapping_python(
    slot_mapping: list[int],
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Append the slots of positions [range_start, range_end), one position at a time."""
    name = "_compute_slot_mapping_python"
    check_list(name, "slot_mapping", slot_mapping)
    check_range(name, block_table, range_start, range_end, block_size)
    check_blocks(name, "block_table", block_table, range_start, range_end, block_size)
    slots = []
    for position in range(range_start, range_end):
        block = int(block_table[position // block_size])
        slots.append(block * block_size + position % block_size)
    slot_mapping.extend(slots)


def _compute_slot_mapping_numpy(
    slot_mapping: list[int],
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Append the slots of positions [range_start, range_end), computed as one numpy array."""
    name = "_compute_slot_mapping_numpy"
    check_list(name, "slot_mapping", slot_mapping)
    check_range(name, block_table, range_start, range_end, block_size)
    check_blocks(name, "block_table", block_table, range_start, range_end, block_size)
    positions = np.arange(range_start, range_end, dtype=np.int64)
    columns = (positions // block_size).tolist()
    blocks = np.array([block_table[column] for column in columns], dtype=np.int64)
    slot_mapping.extend((blocks * block_size + positions % block_size).tolist())


def _divides(block_size: int, cp_interleave: int) -> Iterator[tuple[str, bool, str]]:
    expected = f"a divisor of block_size = {block_size}"
    yield "cp_interleave", block_size % cp_interleave != 0, expected


@of_shapes
def _has_room(num_padded_tokens: int | None, out: torch.Tensor | None) -> Iterator[Any]:
    if num_padded_tokens is not None and out is not None:
        expected = f"at least num_padded_tokens = {num_padded_tokens}"
        yield "out", len(out) < num_padded_tokens, expected


@operation(requires=(_divides, _has_room))
def build_slot_mapping(
    query_start_loc: Offsets,
    num_computed_tokens: ComputedLens,
    # No `BlockTable`: a sequence may be longer than its row.
    block_table: Annotated[torch.Tensor, Array(shape=("R", "W"))],
    block_size: BlockSize,
    *,
    num_padded_tokens: Annotated[int, Int(least="T")] | None = None,
    start_idx: Annotated[torch.Tensor, Array(shape=("R",))] | None = None,
    out: Annotated[torch.Tensor, Array("slots", written=True, longer=True)] | None = None,
    cp_size: Annotated[int, Int(least=1)] = 1,
    cp_rank: Annotated[int, Int(below="cp_size")] = 0,
    cp_interleave: Annotated[int, Int(least=1)] = 1,
) -> Annotated[torch.Tensor, Array("slots", ("?",), may_alias=True)]:
    """Return the cache slots of all query tokens of a batch, int64, on the inputs' device.

    `query_start_loc` (R+1,), `num_computed_tokens` (R,), `start_idx` (R,) and
    `block_table` (R, W) are int32 or int64 on one device; `block_size` is in tokens.
    Token i of request r is at position `num_computed_tokens[r] + i`; its slot is
    -1 before `start_idx[r]` and beyond column W. The result has `num_padded_tokens`
    entries (default: the number of tokens), -1 after the last token. With `out` the
    result is written there, the rest of `out` becomes -1, and its first
    `num_padded_tokens` entries (default: all) are returned. `cp_size` ranks own
    `cp_interleave` positions in turn (section 10): the slot is that of the token's local
    position on rank `cp_rank`, -1 if another rank owns it. Raise MetadataError for
    mismatched shapes, dtypes, devices, and for values out of range. SPEC.md sections 5, 10.
    """
    offsets, table = query_start_loc.tolist(), block_table.tolist()
    computed, width = num_computed_tokens.tolist(), block_table.shape[1]
    first_kept = [0] * len(computed) if start_idx is None else start_idx.tolist()

    slots = []
    for r in range(len(computed)):
        for i in range(offsets[r + 1] - offsets[r]):
            position = computed[r] + i
            turn, place = divmod(position, cp_interleave)
            local = turn // cp_size * cp_interleave + place
            column = local // block_size
            owned = turn % cp_size == cp_rank
            if not owned or position < first_kept[r] or column >= width:
                slots.append(PAD_SLOT_ID)
            else:
                slots.append(table[r][column] * block_size + local % block_size)

    if out is None:
        length = len(slots) if num_padded_tokens is None else num_padded_tokens
        out = torch.empty(length, dtype=torch.int64, device=query_start_loc.device)
    out.fill_(PAD_SLOT_ID)
    out[: len(slots)] = torch.tensor(slots, dtype=torch.int64)
    return out if num_padded_tokens is None else out[:num_padded_tokens]
