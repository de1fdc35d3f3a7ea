"""Count the rejected tokens of each request and find its last kept one."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 128
"""Requests per program."""


@metadata_kernel
def _count_rejected_kernel(
    draft_ends,
    draft_ends_stride,
    counts,
    counts_stride,
    offsets,
    offsets_stride,
    to_sample,
    rejected,
    num_reqs,
    BLOCK: tl.constexpr,
):
    """Program b: requests [b * BLOCK, (b + 1) * BLOCK).

    Bound by latency: four independent loads and two stores of one integer a request.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = row < num_reqs
    end = tl.load(draft_ends + row * draft_ends_stride, mask=exists, other=0)
    has_previous = exists & (row > 0)
    before = tl.load(draft_ends + (row - 1) * draft_ends_stride, mask=has_previous, other=0)
    count = tl.load(counts + row * counts_stride, mask=exists, other=0)
    drafts = end - before
    lost = tl.where(drafts > 0, drafts + 1 - count, 0)
    query_end = tl.load(offsets + (row + 1) * offsets_stride, mask=exists, other=0)
    tl.store(to_sample + row, query_end - 1 - lost, mask=exists)
    tl.store(rejected + row, lost, mask=exists)


def count_rejected_on_device(
    draft_ends: torch.Tensor, counts: torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens to sample and the rejected counts, int32 (R,), by one launch."""
    num_reqs, device = counts.shape[0], counts.device
    to_sample = torch.empty(num_reqs, dtype=torch.int32, device=device)
    rejected = torch.empty(num_reqs, dtype=torch.int32, device=device)
    if num_reqs:
        launch(
            _count_rejected_kernel,
            device,
            (cdiv(num_reqs, _BLOCK),),
            draft_ends,
            draft_ends.stride(0),
            counts,
            counts.stride(0),
            offsets,
            offsets.stride(0),
            to_sample,
            rejected,
            num_reqs,
            BLOCK=_BLOCK,
        )
    return to_sample, rejected
