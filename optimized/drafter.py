"""Inputs of a drafter, request by request (SPEC.md section 14)."""

from __future__ import annotations

from typing import Final

import torch

from attnproof.reference.shared import CommonAttentionMetadata

from .checking import check_call, checks
from .dispatch import on_device
from .host import drafter as loops
from .host.arrays import vector

__all__ = [
    "compute_new_slot_mapping",
    "copy_and_expand_eagle_inputs",
    "eagle_step_update_slot_mapping_and_metadata",
    "prepare_next_token_ids_padded",
]

_checked = checks.follow(globals())

_INT64 = torch.int64
_INT32S: Final = torch.empty(0, dtype=torch.int32)
_INT64S: Final = torch.empty(0, dtype=torch.int64)


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
    """Move each request to its next draft token: write its position, slot and length.

    Shapes, results and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 14.
    """
    if _checked:
        check_call("eagle_step_update_slot_mapping_and_metadata", **locals())
    rows, width = block_table_tensor.shape
    padded = rows if input_batch_size is None else input_batch_size
    if on_device(positions_1d):
        from .kernels.drafter_step import step_on_device

        step_on_device(
            positions_1d,
            block_table_tensor,
            seq_lens,
            block_size,
            max_model_len,
            out_clamped_positions,
            out_slot_mapping,
            padded,
        )
        return
    row_stride, column_stride = block_table_tensor.stride()
    loops.step(
        rows,
        padded,
        *vector(positions_1d),
        block_table_tensor.data_ptr(),
        block_table_tensor.dtype is _INT64,
        row_stride,
        column_stride,
        width,
        *vector(seq_lens),
        *vector(out_clamped_positions),
        out_slot_mapping.data_ptr(),
        out_slot_mapping.stride(0),
        block_size,
        max_model_len,
    )


def prepare_next_token_ids_padded(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each request's last valid sampled token and the number of valid ones, int32 (R,).

    Shapes, results and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 14.
    """
    if _checked:
        check_call("prepare_next_token_ids_padded", **locals())
    rows, width = sampled_token_ids.shape
    if on_device(sampled_token_ids):
        from .kernels.drafter_next_tokens import next_tokens_on_device

        return next_tokens_on_device(
            sampled_token_ids, discard_request_mask, backup_next_token_ids, vocab_size
        )
    tokens, counts = _INT32S.new_empty(rows), _INT32S.new_empty(rows)
    row_stride, column_stride = sampled_token_ids.stride()
    loops.next_tokens(
        rows,
        width,
        sampled_token_ids.data_ptr(),
        sampled_token_ids.dtype is _INT64,
        row_stride,
        column_stride,
        discard_request_mask.data_ptr(),
        discard_request_mask.stride(0),
        backup_next_token_ids.data_ptr(),
        backup_next_token_ids.stride(0),
        vocab_size,
        tokens.data_ptr(),
        counts.data_ptr(),
    )
    return tokens, counts


def compute_new_slot_mapping(
    cad: CommonAttentionMetadata,
    new_positions: torch.Tensor,
    is_rejected_token_mask: torch.Tensor,
    block_size: int,
    num_new_tokens: int,
    max_model_len: int,
) -> torch.Tensor:
    """Return the slots of a batch whose queries each got `num_new_tokens` more tokens, int64.

    Shapes, result and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 14.
    """
    if _checked:
        check_call("compute_new_slot_mapping", **locals())
    offsets, table = cad.query_start_loc, cad.block_table_tensor
    if on_device(offsets):
        from .kernels.drafter_slots import new_slots_on_device

        return new_slots_on_device(
            offsets,
            table,
            new_positions,
            is_rejected_token_mask,
            block_size,
            num_new_tokens,
            max_model_len,
        )
    slots = _INT64S.new_empty(new_positions.shape[0])
    row_stride, column_stride = table.stride()
    loops.new_slots(
        cad.num_reqs,
        *vector(offsets),
        table.data_ptr(),
        table.dtype is _INT64,
        row_stride,
        column_stride,
        table.shape[1],
        *vector(new_positions),
        is_rejected_token_mask.data_ptr(),
        is_rejected_token_mask.stride(0),
        block_size,
        num_new_tokens,
        max_model_len,
        slots.data_ptr(),
        slots.shape[0],
    )
    return slots


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

    Shapes, results and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 14.
    """
    if _checked:
        check_call("copy_and_expand_eagle_inputs", **locals())
    if on_device(query_start_loc):
        from .kernels.drafter_inputs import expand_inputs_on_device

        expand_inputs_on_device(
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
        return
    rejected, masked = out_is_rejected_token_mask, out_is_masked_token_mask
    loops.expand_inputs(
        query_end_loc.shape[0],
        *vector(query_start_loc),
        *vector(query_end_loc),
        *vector(next_token_ids),
        *vector(target_token_ids),
        *vector(target_positions),
        *vector(out_input_ids),
        *vector(out_positions),
        *vector(out_new_token_indices),
        *vector(out_hidden_state_mapping),
        rejected.data_ptr(),
        rejected.stride(0),
        masked.data_ptr(),
        masked.stride(0),
        padding_token_id,
        parallel_drafting_token_id,
        num_padding_slots_per_request,
        shift_input_ids,
    )
