"""Count sampled and rejected tokens of each row."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Rows per program."""


@metadata_kernel
def _token_counts_kernel(
    idx_mapping,
    cu_num_logits,
    seq_lens,
    prefill_len,
    num_sampled,
    num_rejected,
    num_reqs,
    BLOCK: tl.constexpr,
):
    """Program b: rows [b * BLOCK, (b + 1) * BLOCK).

    Bound by latency: two loads that follow each other, of a few kilobytes in total.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < num_reqs
    slot = tl.load(idx_mapping + row, mask=mask, other=-1).to(tl.int64)
    prompt = tl.load(prefill_len + slot, mask=slot >= 0, other=0)
    samples = (slot >= 0) & (tl.load(seq_lens + row, mask=mask, other=0) >= prompt)
    offset = tl.load(cu_num_logits + row, mask=mask, other=0)
    logits = tl.load(cu_num_logits + row + 1, mask=mask, other=0) - offset
    sampled = tl.load(num_sampled + row, mask=mask, other=0)
    tl.store(num_sampled + row, tl.where(samples, sampled, 0), mask=mask)
    tl.store(num_rejected + row, tl.where(samples, logits - sampled, 0), mask=mask)


def count_on_device(
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> None:
    """Write both counts of each row by one launch, without a sync."""
    num_reqs = idx_mapping.shape[0]
    if not num_reqs:
        return
    launch(
        _token_counts_kernel,
        num_sampled.device,
        (cdiv(num_reqs, _BLOCK),),
        idx_mapping,
        cu_num_logits,
        seq_lens,
        prefill_len,
        num_sampled,
        num_rejected,
        num_reqs,
        BLOCK=_BLOCK,
    )
