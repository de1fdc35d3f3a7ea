"""Inputs of a drafter, request by request (SPEC.md section 14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from .definition.definition import operation
from .definition.roles import (
    Array,
    BlockSize,
    BlockTable,
    Int,
    Metadata,
    NumTokens,
    Offsets,
)
from .interface import PAD_SLOT_ID, MetadataError
from .shared import CommonAttentionMetadata

__all__ = [
    "compute_new_slot_mapping",
    "copy_and_expand_eagle_inputs",
    "eagle_step_update_slot_mapping_and_metadata",
    "prepare_next_token_ids_padded",
]


_WIDE = (torch.int64, torch.int32)
_MaxModelLen = Annotated[int, Int(least=1)]


@operation
def eagle_step_update_slot_mapping_and_metadata(
    positions_1d: Annotated[torch.Tensor, Array(shape=("R",), dtype=_WIDE, least=0)],
    block_table_tensor: BlockTable,
    seq_lens: Annotated[torch.Tensor, Array(shape=("R",), least=0, written=True)],
    block_size: BlockSize,
    max_model_len: _MaxModelLen,
    out_clamped_positions: Annotated[
        torch.Tensor,
        Array(shape=("R",), dtype=_WIDE, written=True, longer=True, may_be="positions_1d"),
    ],
    out_slot_mapping: Annotated[
        torch.Tensor,
        Array(shape=("input_batch_size",), dtype=torch.int64, written=True, longer=True),
    ],
    input_batch_size: Annotated[int, Int(least="R")] | None = None,
) -> None:
    """Move each of R requests to its next draft token: write its position, slot and length.

    `positions_1d` (R,), `block_table_tensor` (R, W) and `seq_lens` (R,), which is written in
    place, are int32 or int64; lengths and `block_size` are in tokens. `out_clamped_positions`
    has at least R entries and may be `positions_1d` itself, `out_slot_mapping` int64 at least
    `input_batch_size` (default R); entries behind those are not written. A position that
    reaches `max_model_len` becomes 0, without a slot and with length 1. Raise MetadataError
    for sizes below 1, tensors of other lengths and outputs that overlap. SPEC.md section 14.
    """
    table, width = block_table_tensor.tolist(), block_table_tensor.shape[1]
    positions, lengths = positions_1d.tolist(), seq_lens.tolist()
    for row, (before, length_before) in enumerate(zip(positions, lengths, strict=True)):
        position, length, slot = before + 1, length_before + 1, PAD_SLOT_ID
        column = position // block_size
        if position >= max_model_len:
            position, length = 0, 1
        elif column < width:
            slot = table[row][column] * block_size + position % block_size
        out_clamped_positions[row] = position
        out_slot_mapping[row] = slot
        seq_lens[row] = min(length, max_model_len)
    for row in range(len(positions), input_batch_size or 0):
        out_slot_mapping[row] = PAD_SLOT_ID


@operation(results=("next_token_ids", "valid_sampled_tokens_count"))
def prepare_next_token_ids_padded(
    sampled_token_ids: Annotated[torch.Tensor, Array(shape=("N", "M"), least=-1)],
    discard_request_mask: Annotated[torch.Tensor, Array("flags", shape=("N",), longer=True)],
    backup_next_token_ids: Annotated[
        torch.Tensor, Array(shape=("N",), dtype=torch.int32, longer=True)
    ],
    vocab_size: Annotated[int, Int(least=1)],
) -> tuple[
    Annotated[torch.Tensor, Array(shape=("N",), dtype=torch.int32)],
    Annotated[torch.Tensor, Array(shape=("N",), dtype=torch.int32)],
]:
    """Return each request's last valid sampled token and the number of valid ones, int32 (R,).

    `sampled_token_ids` (R, M) int32 or int64; a token is valid if it is neither -1 nor
    `vocab_size` or above. `discard_request_mask` bool and `backup_next_token_ids` int32 have
    at least R entries. A discarded request has no valid token; a request without one gets its
    backup token. Raise MetadataError for tensors of another shape or dtype, and for tokens
    below -1. SPEC.md section 14.
    """
    next_tokens, counts = [], []
    for row, tokens in enumerate(sampled_token_ids.tolist()):
        valid = [token for token in tokens if token != -1 and token < vocab_size]
        if bool(discard_request_mask[row]):
            valid = []
        counts.append(len(valid))
        next_tokens.append(valid[-1] if valid else int(backup_next_token_ids[row]))
    device = sampled_token_ids.device
    return (
        torch.tensor(next_tokens, dtype=torch.int32, device=device),
        torch.tensor(counts, dtype=torch.int32, device=device),
    )


def _for_each_new_token(
    operation: str, sizes: dict[str, int], cad: CommonAttentionMetadata, num_new_tokens: int
) -> None:
    """Require a position for each token of the extended batch."""
    tokens = cad.num_actual_tokens + cad.num_reqs * num_new_tokens
    if sizes["N"] != tokens:
        raise MetadataError(operation, "new_positions", f"of length {sizes['N']}", f"{tokens}")


@operation(requires=(_for_each_new_token,))
def compute_new_slot_mapping(
    cad: Annotated[CommonAttentionMetadata, Metadata(sequences=True, rows=True)],
    new_positions: Annotated[torch.Tensor, Array(shape=("N",), dtype=_WIDE, least=0)],
    is_rejected_token_mask: Annotated[torch.Tensor, Array("flags", shape=("N",))],
    block_size: BlockSize,
    num_new_tokens: int,
    max_model_len: _MaxModelLen,
) -> Annotated[torch.Tensor, Array("slots", shape=("N",))]:
    """Return the slots of a batch whose queries each got `num_new_tokens` more tokens, int64.

    `new_positions` int32 or int64 and `is_rejected_token_mask` bool have an entry for each
    token of the extended batch, graph padding included. The slot is -1 for a rejected token,
    a position at or beyond `max_model_len` or the row's last column, and graph padding.
    Raise MetadataError for a malformed batch, sizes out of range and tensors of another
    length. SPEC.md section 14.
    """
    offsets, table = cad.query_start_loc.tolist(), cad.block_table_tensor.tolist()
    positions, rejected = new_positions.tolist(), is_rejected_token_mask.tolist()
    width = cad.block_table_tensor.shape[1]
    slots = [PAD_SLOT_ID] * len(positions)
    for row in range(cad.num_reqs):
        first, end = offsets[row] + row * num_new_tokens, offsets[row + 1]
        for token in range(first, end + (row + 1) * num_new_tokens):
            position = positions[token]
            column = position // block_size
            if not rejected[token] and position < max_model_len and column < width:
                slots[token] = table[row][column] * block_size + position % block_size
    return torch.tensor(slots, dtype=torch.int64, device=new_positions.device)


def _has_room(
    operation: str,
    sizes: dict[str, int],
    num_padding_slots_per_request: int,
    shift_input_ids: bool,
) -> None:
    """Require outputs with an entry for each token of the drafter."""
    rows, tokens, slots = sizes["R"], sizes["T"], num_padding_slots_per_request
    drafted = tokens + rows * (slots - int(shift_input_ids))
    for field, axis, length in (
        ("out_input_ids", "I", drafted),
        ("out_positions", "P", drafted),
        ("out_is_rejected_token_mask", "A", drafted),
        ("out_is_masked_token_mask", "B", drafted),
        ("out_new_token_indices", "D", rows * slots),
        ("out_hidden_state_mapping", "H", tokens if shift_input_ids else 0),
    ):
        if sizes[axis] < length:
            got = f"of length {sizes[axis]}"
            raise MetadataError(operation, field, got, f"at least {length}")


def _in_their_rows(
    query_start_loc: torch.Tensor, query_end_loc: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, str]]:
    """Require a token in each row that is not rejected."""
    outside = (query_end_loc < query_start_loc[:-1]) | (query_end_loc >= query_start_loc[1:])
    yield "query_end_loc", outside, "a token of the row"


@operation(requires=(_has_room, _in_their_rows))
def copy_and_expand_eagle_inputs(
    target_token_ids: Annotated[torch.Tensor, Array(shape=("T",), longer=True)],
    target_positions: Annotated[torch.Tensor, Array(shape=("T",), dtype=_WIDE, longer=True)],
    next_token_ids: Annotated[torch.Tensor, Array(shape=("R",))],
    out_input_ids: Annotated[torch.Tensor, Array(shape=("I",), written=True)],
    out_positions: Annotated[torch.Tensor, Array(shape=("P",), dtype=_WIDE, written=True)],
    out_is_rejected_token_mask: Annotated[torch.Tensor, Array("flags", ("A",), written=True)],
    out_is_masked_token_mask: Annotated[torch.Tensor, Array("flags", ("B",), written=True)],
    out_new_token_indices: Annotated[torch.Tensor, Array(shape=("D",), written=True)],
    out_hidden_state_mapping: Annotated[torch.Tensor, Array(shape=("H",), written=True)],
    query_start_loc: Offsets,
    query_end_loc: Annotated[torch.Tensor, Array(shape=("R",))],
    padding_token_id: int,
    parallel_drafting_token_id: int,
    total_input_tokens: NumTokens,
    num_padding_slots_per_request: Annotated[int, Int(least=1)],
    shift_input_ids: bool,
) -> None:
    """Write the drafter's tokens: those of the target, one sampled, then parallel drafts.

    `query_start_loc` (R+1,) are the offsets of T = `total_input_tokens` target tokens and
    `query_end_loc` (R,) the last token of each row that is not rejected. A row of q tokens
    gets q + P outputs, q + P - 1 with `shift_input_ids`: its kept tokens (shifted: without
    the first), the sampled token of `next_token_ids` (R,), P - 1 parallel drafts, and the
    rejected tokens as padding, with P = `num_padding_slots_per_request`. Token ids,
    positions, `out_new_token_indices` (R·P) and `out_hidden_state_mapping` (T, written only
    if shifted) are int32 or int64, the masks bool; entries behind are not written. Raise
    MetadataError for tensors of another length or dtype, outputs that overlap, P below 1,
    and on the CPU rows without a kept token. SPEC.md section 14.
    """
    tokens = target_token_ids[:total_input_tokens].tolist()
    positions = target_positions[:total_input_tokens].tolist()
    offsets, slots = query_start_loc.tolist(), num_padding_slots_per_request
    out = 0
    for row, last in enumerate(query_end_loc.tolist()):
        first, stop = offsets[row], offsets[row + 1]
        kept = tokens[first + int(shift_input_ids) : last + 1]
        drafts = [int(next_token_ids[row]), *[parallel_drafting_token_id] * (slots - 1)]
        rejected = [padding_token_id] * (stop - 1 - last)
        if shift_input_ids:
            for token in range(first, stop):
                out_hidden_state_mapping[token] = out + token - first
        for draft in range(slots):
            out_new_token_indices[row * slots + draft] = out + len(kept) + draft
        for index, token in enumerate([*kept, *drafts, *rejected]):
            live = index < len(kept) + slots
            out_input_ids[out] = token
            out_positions[out] = positions[first] + index if live else 0
            out_is_rejected_token_mask[out] = not live
            out_is_masked_token_mask[out] = live and index > len(kept)
            out += 1
