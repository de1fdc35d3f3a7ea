"""Find request and position of each token that is appended to the cache."""

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
def _append_positions_kernel(
    indptr,
    indptr_stride,
    seq_lens,
    seq_lens_stride,
    out,
    num_reqs,
    first_step,
    length,
    BLOCK: tl.constexpr,
):
    """Program b: tokens [b * BLOCK, (b + 1) * BLOCK), their requests and then their positions.

    Bound by the latency of `row_of`, then by the 8 bytes written per token.
    """
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    request = row_of(token, indptr, indptr_stride, 0, first_step, num_reqs)
    appended = request < num_reqs
    end = tl.load(indptr + (request + 1) * indptr_stride, mask=appended, other=0)
    seq_len = tl.load(seq_lens + request * seq_lens_stride, mask=appended, other=0)
    position = tl.where(appended, seq_len - (end - token), 0)
    in_bounds = token < length
    tl.store(out + token, tl.where(appended, request, -1), mask=in_bounds)
    tl.store(out + length + token, position, mask=in_bounds)


def write_append_positions(indptr: torch.Tensor, seq_lens: torch.Tensor, out: torch.Tensor) -> None:
    """Fill `out` (2, L) int32, requests and positions, by one launch without a sync."""
    num_reqs, length = seq_lens.shape[0], out.shape[1]
    if not length:
        return
    launch(
        _append_positions_kernel,
        out.device,
        (cdiv(length, _BLOCK),),
        indptr,
        indptr.stride(0),
        seq_lens,
        seq_lens.stride(0),
        out,
        num_reqs,
        first_step(num_reqs),
        length,
        BLOCK=_BLOCK,
    )
