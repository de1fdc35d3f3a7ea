"""Inputs of a step of model runner V2, and its update after sampling (SPEC.md section 13).

Arguments, results and errors as in `reference`. Each function is one pass of loops on the
host, or one launch on a device; none synchronises.
"""

from __future__ import annotations

import torch

from .checking import check_call, checks
from .dispatch import on_device
from .host import runner_inputs as loops

__all__ = [
    "combine_sampled_and_draft_tokens",
    "expand_idx_mapping",
    "get_num_sampled_and_rejected",
    "post_update",
    "post_update_num_computed_tokens",
    "prepare_pos_seq_lens",
    "prepare_prefill_inputs",
]

_checked = checks.follow(globals())

_INT64 = torch.int64


def prepare_pos_seq_lens(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Write the position of each token, and the length of each row's sequence."""
    if _checked:
        check_call("prepare_pos_seq_lens", **locals())
    if on_device(idx_mapping):
        from .kernels.step_positions import write_positions

        write_positions(idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens)
        return
    loops.fill_positions(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        query_start_loc.data_ptr(),
        num_computed_tokens.data_ptr(),
        pos.data_ptr(),
        seq_lens.data_ptr(),
        seq_lens.shape[0],
    )


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Write the input tokens of rows that are in their prompt, and those that come next."""
    if _checked:
        check_call("prepare_prefill_inputs", **locals())
    arguments = (
        input_ids,
        next_prefill_tokens,
        idx_mapping,
        query_start_loc,
        all_token_ids,
        prefill_len,
        num_computed_tokens,
    )
    if on_device(idx_mapping):
        from .kernels.prefill_inputs import write_prefill_inputs

        write_prefill_inputs(*arguments)
        return
    loops.fill_prefill(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        query_start_loc.data_ptr(),
        num_computed_tokens.data_ptr(),
        prefill_len.data_ptr(),
        all_token_ids.data_ptr(),
        all_token_ids.stride(0),
        input_ids.data_ptr(),
        next_prefill_tokens.shape[0],
        next_prefill_tokens.data_ptr(),
        next_prefill_tokens.stride(0),
    )


def combine_sampled_and_draft_tokens(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
    num_new_sampled_tokens: int = 1,
) -> torch.Tensor:
    """Write sampled and draft tokens to the input, and return the tokens with logits, int64."""
    if _checked:
        check_call("combine_sampled_and_draft_tokens", **locals())
    arguments = (
        input_ids,
        idx_mapping,
        last_sampled_tokens,
        query_start_loc,
        seq_lens,
        prefill_len,
        draft_tokens,
        cu_num_logits,
    )
    logits_indices = torch.empty(num_logits, dtype=_INT64, device=input_ids.device)
    if on_device(idx_mapping):
        from .kernels.combined_tokens import combine_on_device

        combine_on_device(*arguments, num_new_sampled_tokens, logits_indices)
        return logits_indices
    loops.fill_combined(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        query_start_loc.data_ptr(),
        cu_num_logits.data_ptr(),
        seq_lens.data_ptr(),
        prefill_len.data_ptr(),
        last_sampled_tokens.data_ptr(),
        last_sampled_tokens.dtype is _INT64,
        draft_tokens.data_ptr(),
        draft_tokens.stride(0),
        draft_tokens.dtype is _INT64,
        num_new_sampled_tokens,
        input_ids.data_ptr(),
        logits_indices.data_ptr(),
    )
    return logits_indices


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the slot of each logit and its place among its row's logits."""
    if _checked:
        check_call("expand_idx_mapping", **locals())
    device = idx_mapping.device
    slots = torch.empty(total_num_logits, dtype=idx_mapping.dtype, device=device)
    places = torch.empty(total_num_logits, dtype=torch.int32, device=device)
    if on_device(idx_mapping):
        from .kernels.expanded_rows import expand_on_device

        expand_on_device(idx_mapping, cu_num_logits, slots, places)
        return slots, places
    loops.fill_expanded(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        cu_num_logits.data_ptr(),
        slots.data_ptr(),
        places.data_ptr(),
    )
    return slots, places


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sampled tokens of each row, which are written, and the rejected ones."""
    if _checked:
        check_call("get_num_sampled_and_rejected", **locals())
    rows, dtype = num_sampled.shape[0], num_sampled.dtype
    num_rejected = torch.empty(rows, dtype=dtype, device=num_sampled.device)
    if on_device(idx_mapping):
        from .kernels.token_counts import count_on_device

        count_on_device(
            num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len
        )
        return num_sampled, num_rejected
    loops.fill_counts(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        cu_num_logits.data_ptr(),
        seq_lens.data_ptr(),
        prefill_len.data_ptr(),
        num_sampled.data_ptr(),
        num_rejected.data_ptr(),
    )
    return num_sampled, num_rejected


def post_update(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
) -> None:
    """Add the sampled tokens of each row to the state of its slot; skip dummy rows."""
    if _checked:
        check_call("post_update", **locals())
    arguments = (
        idx_mapping,
        num_computed_tokens,
        last_sampled_tokens,
        output_bin_counts,
        sampled_tokens,
        num_sampled,
        num_rejected,
        query_start_loc,
        all_token_ids,
        total_len,
    )
    if on_device(idx_mapping):
        from .kernels.post_update import update_on_device

        update_on_device(*arguments)
        return
    loops.update(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        num_computed_tokens.data_ptr(),
        last_sampled_tokens.data_ptr(),
        last_sampled_tokens.dtype is _INT64,
        0 if output_bin_counts is None else output_bin_counts.data_ptr(),
        0 if output_bin_counts is None else output_bin_counts.stride(0),
        sampled_tokens.data_ptr(),
        sampled_tokens.stride(0),
        sampled_tokens.dtype is _INT64,
        num_sampled.data_ptr(),
        num_rejected.data_ptr(),
        0 if query_start_loc is None else query_start_loc.data_ptr(),
        all_token_ids.data_ptr(),
        all_token_ids.stride(0),
        total_len.data_ptr(),
    )


def post_update_num_computed_tokens(
    idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor, query_start_loc: torch.Tensor
) -> None:
    """Add each row's query tokens to `num_computed_tokens` (slots,); skip dummy rows."""
    if _checked:
        check_call("post_update_num_computed_tokens", **locals())
    if on_device(idx_mapping):
        from .kernels.advance import advance_on_device

        advance_on_device(idx_mapping, num_computed_tokens, query_start_loc)
        return
    loops.advance(
        idx_mapping.shape[0],
        idx_mapping.data_ptr(),
        idx_mapping.dtype is _INT64,
        num_computed_tokens.data_ptr(),
        query_start_loc.data_ptr(),
    )
