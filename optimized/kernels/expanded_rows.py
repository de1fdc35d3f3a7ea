"""Repeat each row's request slot for its logits."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Logits per program."""


@metadata_kernel
def _expanded_rows_kernel(
    idx_mapping,
    cu_num_logits,
    slots,
    places,
    num_reqs,
    first_step,
    num_logits,
    BLOCK: tl.constexpr,
):
    """Program b: logits [b * BLOCK, (b + 1) * BLOCK).

    Bound by the latency of the bisection's log2(R) loads.
    """
    logit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = row_of(logit, cu_num_logits, 1, 0, first_step, num_reqs)
    has_row = (row < num_reqs) & (logit < num_logits)
    offset = tl.load(cu_num_logits + row, mask=has_row, other=0)
    tl.store(slots + logit, tl.load(idx_mapping + row, mask=has_row, other=0), mask=has_row)
    tl.store(places + logit, (logit - offset).to(tl.int32), mask=has_row)


def expand_on_device(
    idx_mapping: torch.Tensor,
    cu_num_logits: torch.Tensor,
    slots: torch.Tensor,
    places: torch.Tensor,
) -> None:
    """Write slot and place of each logit by one launch, without a sync."""
    num_reqs, num_logits = idx_mapping.shape[0], slots.shape[0]
    if not num_logits:
        return
    launch(
        _expanded_rows_kernel,
        slots.device,
        (cdiv(num_logits, _BLOCK),),
        idx_mapping,
        cu_num_logits,
        slots,
        places,
        num_reqs,
        first_step(num_reqs),
        num_logits,
        BLOCK=_BLOCK,
    )
