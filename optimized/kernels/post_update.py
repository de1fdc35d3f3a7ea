"""Add sampled tokens to the state of request slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import launch
from .versions import lanes_for, metadata_kernel


@metadata_kernel
def _post_update_kernel(
    idx_mapping,
    num_computed,
    last_sampled,
    counts,
    counts_stride,
    sampled_tokens,
    sampled_tokens_stride,
    num_sampled,
    num_rejected,
    query_start_loc,
    all_token_ids,
    all_token_ids_stride,
    total_len,
    COUNTED: tl.constexpr,
    ADVANCED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r: the state of row r's slot. BLOCK is at least the most tokens of a row.

    A row may sample a token twice: counts are added atomically. Bound by latency: loads of
    one number that follow each other, then a few tokens.
    """
    row = tl.program_id(0)
    slot = tl.load(idx_mapping + row).to(tl.int64)
    if slot < 0:
        return
    number = tl.load(num_sampled + row)
    length = tl.load(total_len + slot)
    place = tl.arange(0, BLOCK)
    mask = place < number
    sampled = sampled_tokens + row.to(tl.int64) * sampled_tokens_stride + place
    token = tl.load(sampled, mask=mask, other=0)
    history = all_token_ids + slot * all_token_ids_stride + length + place
    tl.store(history, token.to(tl.int32), mask=mask)
    if COUNTED:
        tl.atomic_add(counts + slot * counts_stride + token, 1, mask=mask)
    # Only one lane holds the last token, so all lanes may have one address.
    tl.store(last_sampled + slot + 0 * place, token, mask=place == number - 1)
    tl.store(total_len + slot, length + number)

    delta = -tl.load(num_rejected + row)
    if ADVANCED:
        delta += tl.load(query_start_loc + row + 1) - tl.load(query_start_loc + row)
    tl.store(num_computed + slot, tl.load(num_computed + slot) + delta)


def update_on_device(
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
    """Update the slots of all rows by one launch, without a sync."""
    num_reqs = idx_mapping.shape[0]
    if not num_reqs:
        return
    counts = total_len if output_bin_counts is None else output_bin_counts
    starts = total_len if query_start_loc is None else query_start_loc
    launch(
        _post_update_kernel,
        idx_mapping.device,
        (num_reqs,),
        idx_mapping,
        num_computed_tokens,
        last_sampled_tokens,
        counts,
        counts.stride(0),
        sampled_tokens,
        sampled_tokens.stride(0),
        num_sampled,
        num_rejected,
        starts,
        all_token_ids,
        all_token_ids.stride(0),
        total_len,
        COUNTED=output_bin_counts is not None,
        ADVANCED=query_start_loc is not None,
        BLOCK=lanes_for(sampled_tokens.shape[1]),
        num_warps=1,
    )
