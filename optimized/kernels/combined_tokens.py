"""Put sampled and draft tokens into a step's input."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import launch
from .versions import lanes_for, metadata_kernel


@metadata_kernel
def _combined_tokens_kernel(
    idx_mapping,
    query_start_loc,
    cu_num_logits,
    seq_lens,
    prefill_len,
    last_sampled,
    draft_tokens,
    draft_tokens_stride,
    input_ids,
    logits_indices,
    NEW_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program r: the logits of row r, and the tokens that it verifies.

    BLOCK is at least the most logits of a row. Bound by latency: seven loads of one number,
    then a few tokens.
    """
    row = tl.program_id(0)
    slot = tl.load(idx_mapping + row).to(tl.int64)
    offset = tl.load(cu_num_logits + row)
    count = tl.load(cu_num_logits + row + 1) - offset
    end = tl.load(query_start_loc + row + 1)
    place = tl.arange(0, BLOCK)
    token = (end - count + place).to(tl.int64)
    tl.store(logits_indices + offset + place, token, mask=place < count)

    prompt = tl.load(prefill_len + slot, mask=slot >= 0, other=0)
    length = tl.load(seq_lens + row)
    decodes = (slot >= 0) & (length > prompt) & (count > 0)
    if NEW_TOKENS > 0:
        past_prompt = decodes & (length - count >= prompt)
        sampled = tl.load(last_sampled + slot, mask=past_prompt, other=0)
        tl.store(input_ids + end - count, sampled.to(tl.int32), mask=past_prompt)
    drafts = count - NEW_TOKENS
    mask = decodes & (place < drafts)
    draft = tl.load(draft_tokens + slot * draft_tokens_stride + place, mask=mask, other=0)
    tl.store(input_ids + end - drafts + place, draft.to(tl.int32), mask=mask)


def combine_on_device(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_new_sampled_tokens: int,
    logits_indices: torch.Tensor,
) -> None:
    """Write `input_ids` and all of `logits_indices` by one launch, without a sync."""
    num_reqs = idx_mapping.shape[0]
    if not num_reqs:
        return
    most = draft_tokens.shape[1] + num_new_sampled_tokens
    launch(
        _combined_tokens_kernel,
        input_ids.device,
        (num_reqs,),
        idx_mapping,
        query_start_loc,
        cu_num_logits,
        seq_lens,
        prefill_len,
        last_sampled_tokens,
        draft_tokens,
        draft_tokens.stride(0),
        input_ids,
        logits_indices,
        NEW_TOKENS=num_new_sampled_tokens,
        BLOCK=lanes_for(most),
        num_warps=1,
    )
