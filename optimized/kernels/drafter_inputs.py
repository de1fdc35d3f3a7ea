"""Copy the target's tokens to a drafter's inputs and add the tokens to draft."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Outputs per program."""


@metadata_kernel
def _expand_inputs_kernel(
    tokens,
    tokens_stride,
    positions,
    positions_stride,
    sampled,
    sampled_stride,
    offsets,
    offsets_stride,
    ends,
    ends_stride,
    out_ids,
    out_ids_stride,
    out_positions,
    out_positions_stride,
    rejected_mask,
    rejected_mask_stride,
    masked_mask,
    masked_mask_stride,
    indices,
    indices_stride,
    mapping,
    mapping_stride,
    num_reqs,
    first_step,
    num_outputs,
    slots,
    padding,
    parallel,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program b: outputs [b * BLOCK, (b + 1) * BLOCK).

    Row r begins at its offset + r * (slots - SHIFT). Bound by the latency of `row_of`, then by
    the 26 bytes written per output.
    """
    out = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    added_per_row = slots - SHIFT
    row = row_of(out, offsets, offsets_stride, added_per_row, first_step, num_reqs)
    exists = (out < num_outputs) & (row < num_reqs)
    first = tl.load(offsets + row * offsets_stride, mask=exists, other=0).to(tl.int64)
    stop = tl.load(offsets + (row + 1) * offsets_stride, mask=exists, other=0).to(tl.int64)
    last = tl.load(ends + row * ends_stride, mask=exists, other=0).to(tl.int64)
    j = out - (first + row * added_per_row)
    kept = last + 1 - first - SHIFT
    copied, live = exists & (j < kept), exists & (j < kept + slots)

    token = tl.load(tokens + (first + SHIFT + j) * tokens_stride, mask=copied, other=0)
    bonus = tl.load(sampled + row * sampled_stride, mask=exists, other=0).to(tl.int64)
    begin = tl.load(positions + first * positions_stride, mask=exists, other=0).to(tl.int64)
    added = tl.where(j == kept, bonus, tl.where(live, parallel, padding).to(tl.int64))
    new_id = tl.where(copied, token.to(tl.int64), added)
    tl.store(out_ids + out * out_ids_stride, new_id, mask=exists)
    position = tl.where(live, begin + j, 0)
    tl.store(out_positions + out * out_positions_stride, position, mask=exists)
    tl.store(rejected_mask + out * rejected_mask_stride, j >= kept + slots, mask=exists)
    tl.store(masked_mask + out * masked_mask_stride, live & (j > kept), mask=exists)
    place = (row * slots + j - kept) * indices_stride
    tl.store(indices + place, out, mask=live & (j >= kept))
    if SHIFT:
        tl.store(mapping + (first + j) * mapping_stride, out, mask=exists & (j < stop - first))


def expand_inputs_on_device(
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
    """Write all outputs by one launch."""
    num_reqs, slots = query_end_loc.shape[0], num_padding_slots_per_request
    num_outputs = total_input_tokens + num_reqs * (slots - int(shift_input_ids))
    if num_outputs == 0:
        return
    vectors = (
        target_token_ids,
        target_positions,
        next_token_ids,
        query_start_loc,
        query_end_loc,
        out_input_ids,
        out_positions,
        out_is_rejected_token_mask,
        out_is_masked_token_mask,
        out_new_token_indices,
        out_hidden_state_mapping,
    )
    launch(
        _expand_inputs_kernel,
        query_start_loc.device,
        (cdiv(num_outputs, _BLOCK),),
        *(part for vector in vectors for part in (vector, vector.stride(0))),
        num_reqs,
        first_step(num_reqs),
        num_outputs,
        slots,
        padding_token_id,
        parallel_drafting_token_id,
        SHIFT=shift_input_ids,
        BLOCK=_BLOCK,
    )
