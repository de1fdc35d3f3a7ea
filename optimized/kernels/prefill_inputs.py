"""Copy the prompt tokens of a step to its input."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 512
"""Tokens and rows per program."""


@metadata_kernel
def _prefill_inputs_kernel(
    idx_mapping,
    query_start_loc,
    num_computed,
    prefill_len,
    all_token_ids,
    all_token_ids_stride,
    input_ids,
    next_tokens,
    next_tokens_stride,
    num_reqs,
    first_step,
    num_inputs,
    lookahead,
    BLOCK: tl.constexpr,
):
    """Program b: input tokens and rows [b * BLOCK, (b + 1) * BLOCK).

    Each token finds its row by bisection, so that one long prompt is copied by many
    programs. Bound by the latency of those loads, then by 8 bytes a prompt token.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = row_of(index, query_start_loc, 1, 0, first_step, num_reqs)
    in_batch = (row < num_reqs) & (index < num_inputs)
    slot = tl.load(idx_mapping + row, mask=in_batch, other=-1).to(tl.int64)
    begin = tl.load(query_start_loc + row, mask=in_batch, other=0)
    computed = tl.load(num_computed + slot, mask=slot >= 0, other=0)
    length = tl.load(prefill_len + slot, mask=slot >= 0, other=0)
    prefill = computed < length
    history = all_token_ids + slot * all_token_ids_stride
    token = tl.load(history + computed + (index - begin), mask=prefill, other=0)
    tl.store(input_ids + index, token, mask=prefill)

    slot = tl.load(idx_mapping + index, mask=index < num_reqs, other=-1).to(tl.int64)
    computed = tl.load(num_computed + slot, mask=slot >= 0, other=0)
    length = tl.load(prefill_len + slot, mask=slot >= 0, other=0)
    prefill = computed < length
    start = tl.load(query_start_loc + index, mask=prefill, other=0)
    end = computed + tl.load(query_start_loc + index + 1, mask=prefill, other=0) - start
    history = all_token_ids + slot * all_token_ids_stride
    for i in range(lookahead):
        token = tl.load(history + end + i, mask=prefill & (end + i < length), other=0)
        tl.store(next_tokens + i * next_tokens_stride + slot, token, mask=prefill)


def write_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Write the tokens of rows in their prompt by one launch, without a sync."""
    num_reqs = idx_mapping.shape[0]
    if not num_reqs:
        return
    entries = max(input_ids.shape[0], num_reqs)
    launch(
        _prefill_inputs_kernel,
        input_ids.device,
        (cdiv(entries, _BLOCK),),
        idx_mapping,
        query_start_loc,
        num_computed_tokens,
        prefill_len,
        all_token_ids,
        all_token_ids.stride(0),
        input_ids,
        next_prefill_tokens,
        next_prefill_tokens.stride(0),
        num_reqs,
        first_step(num_reqs),
        input_ids.shape[0],
        next_prefill_tokens.shape[0],
        BLOCK=_BLOCK,
    )
