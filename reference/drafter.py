"""Inputs of a drafter, request by request (SPEC.md section 14)."""

from __future__ import annotations

import torch

from .checks.drafter import check_new_slots, check_next_tokens, check_step
from .checks.drafter_inputs import check_expand
from .interface import PAD_SLOT_ID
from .shared import CommonAttentionMetadata

__all__ = [
    "compute_new_slot_mapping",
    "copy_and_expand_eagle_inputs",
    "eagle_step_update_slot_mapping_and_metadata",
    "prepare_next_token_ids_padded",
]


def eagle_step_update_slot_mapping_and_metadata(
    positions_1d: torch.Tensor,
    block_table_tensor: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    max_model_len: int,
    out_clamped_positions: torch.Tensor,
    out_slot_mapping: torch.Tensor,
    input_batch_size: int | None = None,
) -> None:
    """Move each of R requests to its next draft token: write its position, slot and length.

    `positions_1d` (R,), `block_table_tensor` (R, W) and `seq_lens` (R,), which is written in
    place, are int32 or int64; lengths and `block_size` are in tokens. `out_clamped_positions`
    has at least R entries and may be `positions_1d` itself, `out_slot_mapping` int64 at least
    `input_batch_size` (default R); entries behind those are not written. A position that
    reaches `max_model_len` becomes 0, without a slot and with length 1. Raise MetadataError
    for sizes below 1, tensors of other lengths and outputs that overlap. SPEC.md section 14.
    """
    check_step(
        positions_1d,
        block_table_tensor,
        seq_lens,
        block_size,
        max_model_len,
        out_clamped_positions,
        out_slot_mapping,
        input_batch_size,
    )
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


def prepare_next_token_ids_padded(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each request's last valid sampled token and the number of valid ones, int32 (R,).

    `sampled_token_ids` (R, M) int32 or int64; a token is valid if it is neither -1 nor
    `vocab_size` or above. `discard_request_mask` bool and `backup_next_token_ids` int32 have
    at least R entries. A discarded request has no valid token; a request without one gets its
    backup token. Raise MetadataError for tensors of another shape or dtype, and for tokens
    below -1. SPEC.md section 14.
    """
    check_next_tokens(sampled_token_ids, discard_request_mask, backup_next_token_ids, vocab_size)
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


def compute_new_slot_mapping(
    cad: CommonAttentionMetadata,
    new_positions: torch.Tensor,
    is_rejected_token_mask: torch.Tensor,
    block_size: int,
    num_new_tokens: int,
    max_model_len: int,
) -> torch.Tensor:
    """Return the slots of a batch whose queries each got `num_new_tokens` more tokens, int64.

    `new_positions` int32 or int64 and `is_rejected_token_mask` bool have an entry for each
    token of the extended batch, graph padding included. The slot is -1 for a rejected token,
    a position at or beyond `max_model_len` or the row's last column, and graph padding.
    Raise MetadataError for a malformed batch, sizes out of range and tensors of another
    length. SPEC.md section 14.
    """
    check_new_slots(
        cad, new_positions, is_rejected_token_mask, block_size, num_new_tokens, max_model_len
    )
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


def copy_and_expand_eagle_inputs(
    target_token_ids: torch.Tensor,
    target_positions: torch.Tensor,
    next_token_ids: torch.Tensor,
    out_input_ids: torch.Tensor,
    out_positions: torch.Tensor,
    out_is_rejected_token_mask: torch.Tensor,
    out_is_masked_token_mask: torch.Tensor,
    out_new_token_indices: torch.Tensor,
    out_hidden_state_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    query_end_loc: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    total_input_tokens: int,
    num_padding_slots_per_request: int,
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
    check_expand(
        target_token_ids,
        target_positions,
        next_token_ids,
        out_input_ids,
        out_positions,
        out_is_rejected_token_mask,
        out_is_masked_token_mask,
        out_new_token_indices,
        out_hidden_state_mapping,
        query_start_loc,
        query_end_loc,
        padding_token_id,
        parallel_drafting_token_id,
        total_input_tokens,
        num_padding_slots_per_request,
        shift_input_ids,
    )
    tokens, positions = target_token_ids.tolist(), target_positions.tolist()
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
