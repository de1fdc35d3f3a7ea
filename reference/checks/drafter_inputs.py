"""Checks of `copy_and_expand_eagle_inputs` (SPEC.md section 14)."""

from __future__ import annotations

from itertools import pairwise

import torch

from ..interface.errors import MetadataError
from .common import (
    check_bool,
    check_device,
    check_int,
    check_length,
    check_offsets,
    check_tensor,
)
from .drafter import check_apart, check_room

_OPERATION = "copy_and_expand_eagle_inputs"


def check_expand(
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
    """Require valid arguments; on the CPU also queries with a token that is not rejected."""
    for field, value, minimum in (
        ("padding_token_id", padding_token_id, 0),
        ("parallel_drafting_token_id", parallel_drafting_token_id, 0),
        ("total_input_tokens", total_input_tokens, 0),
        ("num_padding_slots_per_request", num_padding_slots_per_request, 1),
    ):
        check_int(_OPERATION, field, value, minimum)
    check_bool(_OPERATION, "shift_input_ids", shift_input_ids)
    ends = check_tensor(_OPERATION, "query_end_loc", query_end_loc, 1)
    rows, device = ends.shape[0], ends.device
    slots, tokens = num_padding_slots_per_request, total_input_tokens
    drafted = tokens + rows * (slots - int(shift_input_ids))
    inputs = {
        "query_start_loc": query_start_loc,
        "query_end_loc": query_end_loc,
        "next_token_ids": next_token_ids,
        "target_token_ids": target_token_ids,
        "target_positions": target_positions,
    }
    for field, length in (("query_start_loc", rows + 1), ("next_token_ids", rows)):
        check_length(_OPERATION, field, check_tensor(_OPERATION, field, inputs[field], 1), length)
        check_device(_OPERATION, field, inputs[field], device)
    for field in ("target_token_ids", "target_positions"):
        check_room(_OPERATION, field, inputs[field], tokens, device)
    outputs = {
        "out_input_ids": out_input_ids,
        "out_positions": out_positions,
        "out_is_rejected_token_mask": out_is_rejected_token_mask,
        "out_is_masked_token_mask": out_is_masked_token_mask,
        "out_new_token_indices": out_new_token_indices,
        "out_hidden_state_mapping": out_hidden_state_mapping,
    }
    rooms = {"out_new_token_indices": rows * slots}
    rooms["out_hidden_state_mapping"] = tokens if shift_input_ids else 0
    for field, out in outputs.items():
        dtype = torch.bool if field.endswith("mask") else None
        check_room(_OPERATION, field, out, rooms.get(field, drafted), device, dtype)
    check_apart(_OPERATION, outputs, inputs)
    if query_end_loc.is_cpu:
        _check_queries(query_start_loc, query_end_loc, tokens)


def _check_queries(
    query_start_loc: torch.Tensor, query_end_loc: torch.Tensor, total_input_tokens: int
) -> None:
    """Require rising offsets up to the number of tokens, and in each row a token that is kept."""
    check_offsets(_OPERATION, "query_start_loc", query_start_loc)
    offsets = query_start_loc.tolist()
    if offsets[-1] != total_input_tokens:
        expected = f"query_start_loc's end {offsets[-1]}"
        raise MetadataError(_OPERATION, "total_input_tokens", total_input_tokens, expected)
    ends = zip(pairwise(offsets), query_end_loc.tolist(), strict=True)
    for row, ((first, stop), last) in enumerate(ends):
        if not first <= last < stop:
            expected = f"a token of the row, {first} to {stop - 1}"
            raise MetadataError(_OPERATION, f"query_end_loc[{row}]", last, expected)
