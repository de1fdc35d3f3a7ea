"""Write the request of each query token."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 512
"""Tokens per program."""


@metadata_kernel
def _request_indices_kernel(
    offsets, offsets_stride, out, out_stride, rows, first_step, mapped, end, BLOCK: tl.constexpr
):
    """Program b: tokens [b * BLOCK, (b + 1) * BLOCK).

    Bound by the latency of `row_of`, then by the 4 bytes written per token.
    """
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = row_of(token, offsets, offsets_stride, 0, first_step, rows)
    tl.store(out + token * out_stride, tl.where(token < mapped, row, 0), mask=token < end)


def write_request_indices(offsets: torch.Tensor, out: torch.Tensor, mapped: int, end: int) -> None:
    """Fill `out[:end]` by one launch, without a sync; `offsets` (R+1,) are those of the tokens."""
    if not end:
        return
    rows = offsets.shape[0] - 1
    launch(
        _request_indices_kernel,
        out.device,
        (cdiv(end, _BLOCK),),
        offsets,
        offsets.stride(0),
        out,
        out.stride(0),
        rows,
        first_step(rows),
        mapped,
        end,
        BLOCK=_BLOCK,
    )
