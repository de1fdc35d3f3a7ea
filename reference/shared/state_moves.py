"""Copies of recurrent states between blocks, before and after a step (SPEC.md section 17).

Both packages share them: an engine's kernel copies the bytes of all layers, and few rows move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int

_Slots = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32, below="P", distinct=True)]
_Pool = Annotated[torch.Tensor, Array(shape=("P",), dtype=torch.int32)]
_Kept = Annotated[torch.Tensor, Array(shape=("P",), dtype=torch.int32, written=True)]
_Table = Annotated[torch.Tensor, Array(shape=("P", "W"), dtype=torch.int32, least=0, below="S")]
_Windows = Annotated[
    torch.Tensor, Array(shape=("S", "C", "D"), dtype=torch.int32, dense=True, written=True)
]
_States = Annotated[
    torch.Tensor, Array(shape=("S", "H"), dtype=torch.int32, dense=True, written=True)
]
_BlockSize = Annotated[int, Int(least=1)]
_Move = tuple[int, int, int, int]
"""Slot, column of the source, tokens behind its state, column of the target."""


def _moves_before(
    idx_mapping: torch.Tensor,
    state_idx: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    block_size: int,
) -> list[_Move]:
    lens = query_start_loc.diff().tolist()
    moves = []
    for slot, query_len in zip(idx_mapping.tolist(), lens, strict=True):
        end = int(num_computed_tokens[slot]) + query_len
        offset = max(0, int(num_accepted_tokens[slot]) - 1)
        moves.append((slot, int(state_idx[slot]), offset, -(-end // block_size) - 1))
    return moves


def _moves_after(
    idx_mapping: torch.Tensor,
    state_idx: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    block_size: int,
) -> list[_Move]:
    moves = []
    for slot in idx_mapping.tolist():
        if slot < 0:
            continue
        computed = int(num_computed_tokens[slot])
        first = computed - int(num_accepted_tokens[slot]) + 1
        boundary = computed // block_size * block_size
        if boundary >= first:
            target = boundary // block_size - 1
            moves.append((slot, int(state_idx[slot]), boundary - first, target))
    return moves


def _columns_fit(
    moves: list[_Move], block_table: torch.Tensor, width: int
) -> Iterator[tuple[str, bool, str]]:
    yield "num_computed_tokens", any(move[3] < 0 for move in moves), "at least the accepted ones"
    last = max((max(source + offset, target) for _, source, offset, target in moves), default=-1)
    yield "num_accepted_tokens", any(move[2] >= width for move in moves), f"at most {width}"
    yield "block_table", last >= block_table.shape[1], f"a column {last}"


def _before_fits(
    idx_mapping: torch.Tensor,
    state_idx: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    block_table: torch.Tensor,
    conv_state: torch.Tensor,
    block_size: int,
) -> Iterator[tuple[str, bool, str]]:
    starts = query_start_loc
    falls = int(starts[0]) != 0 or bool((starts.diff() < 1).any())
    yield "query_start_loc", falls, "offsets from 0, with a token for each row"
    moves = _moves_before(
        idx_mapping,
        state_idx,
        num_computed_tokens,
        query_start_loc,
        num_accepted_tokens,
        block_size,
    )
    yield from _columns_fit(moves, block_table, conv_state.shape[1])


def _after_fits(
    idx_mapping: torch.Tensor,
    state_idx: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    block_table: torch.Tensor,
    conv_state: torch.Tensor,
    block_size: int,
) -> Iterator[tuple[str, bool, str]]:
    moves = _moves_after(
        idx_mapping, state_idx, num_computed_tokens, num_accepted_tokens, block_size
    )
    yield "state_idx", any(source < 0 for _, source, *_ in moves), "a column of each row"
    yield from _columns_fit(moves, block_table, conv_state.shape[1])


@operation(requires=(_before_fits,))
def preprocess_mamba_align(
    idx_mapping: _Slots,
    state_idx: _Kept,
    num_computed_tokens: _Pool,
    query_start_loc: Annotated[torch.Tensor, Array(shape=("R+1",), dtype=torch.int32)],
    num_accepted_tokens: _Kept,
    block_table: _Table,
    conv_state: _Windows,
    temporal_state: _States,
    block_size: _BlockSize,
) -> None:
    """Copy the states that a step reads to the blocks in which it writes.

    Row r is the request in slot `idx_mapping[r]` (R,) of (P,) int32 pools: `state_idx` is the
    column of its running block, -1 without one, `num_accepted_tokens` those of the step before.
    `block_table` (P, W) int32 names blocks of `block_size` tokens; `conv_state` (S, C, D) and
    `temporal_state` (S, H) int32 hold the states of a layer. `state_idx` becomes the last column
    of the step. If it was another one, the state there is copied, with `num_accepted_tokens` - 1
    tokens behind it, and one token counts as accepted. Raise MetadataError for tables that are
    too narrow, rows without a token, and other shapes and dtypes. SPEC.md section 17.
    """
    moves = _moves_before(
        idx_mapping,
        state_idx,
        num_computed_tokens,
        query_start_loc,
        num_accepted_tokens,
        block_size,
    )
    for slot, source, offset, target in moves:
        if source >= 0 and source != target:
            _copy(block_table[slot].tolist(), source, offset, target, conv_state, temporal_state)
            num_accepted_tokens[slot] = 1
        state_idx[slot] = target


@operation(requires=(_after_fits,))
def postprocess_mamba_align(
    idx_mapping: Annotated[
        torch.Tensor, Array(shape=("R",), dtype=torch.int32, least=-1, below="P", distinct=True)
    ],
    state_idx: _Pool,
    num_computed_tokens: _Pool,
    num_accepted_tokens: _Kept,
    block_table: _Table,
    conv_state: _Windows,
    temporal_state: _States,
    block_size: _BlockSize,
) -> None:
    """Copy the state at the last full block of each sequence to that block, if a step passed it.

    Arguments are those of `preprocess_mamba_align`, after the step: `num_computed_tokens` has
    the accepted tokens. Rows with slot -1 are left out. A step passes the end of a block if that
    is among its accepted tokens. Where the state is in the running block itself, one token counts
    as accepted. Raise MetadataError as there. SPEC.md section 17.
    """
    moves = _moves_after(
        idx_mapping, state_idx, num_computed_tokens, num_accepted_tokens, block_size
    )
    for slot, source, offset, target in moves:
        if source == target:
            num_accepted_tokens[slot] = 1
        if source != target or offset:
            _copy(block_table[slot].tolist(), source, offset, target, conv_state, temporal_state)


def _copy(
    row: list[int],
    source: int,
    offset: int,
    target: int,
    conv_state: torch.Tensor,
    temporal_state: torch.Tensor,
) -> None:
    """Copy the state `offset` tokens behind that of a column, and the window that ends there."""
    kept = conv_state.shape[1] - offset
    conv_state[row[target], :kept] = conv_state[row[source], offset:].clone()
    temporal_state[row[target]] = temporal_state[row[source + offset]].clone()
