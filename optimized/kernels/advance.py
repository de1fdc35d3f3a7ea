"""Add a step's tokens to the computed tokens of request slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Rows per program."""


@metadata_kernel
def _advance_kernel(idx_mapping, num_computed, query_start_loc, num_reqs, BLOCK: tl.constexpr):
    """Program b: rows [b * BLOCK, (b + 1) * BLOCK).

    No two rows have the same slot. Bound by latency: two loads that follow each other.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < num_reqs
    slot = tl.load(idx_mapping + row, mask=mask, other=-1).to(tl.int64)
    start = tl.load(query_start_loc + row, mask=mask, other=0)
    end = tl.load(query_start_loc + row + 1, mask=mask, other=0)
    computed = tl.load(num_computed + slot, mask=slot >= 0, other=0)
    tl.store(num_computed + slot, computed + end - start, mask=slot >= 0)


def advance_on_device(
    idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor, query_start_loc: torch.Tensor
) -> None:
    """Advance the slots of all rows by one launch, without a sync."""
    num_reqs = idx_mapping.shape[0]
    if not num_reqs:
        return
    launch(
        _advance_kernel,
        idx_mapping.device,
        (cdiv(num_reqs, _BLOCK),),
        idx_mapping,
        num_computed_tokens,
        query_start_loc,
        num_reqs,
        BLOCK=_BLOCK,
    )
