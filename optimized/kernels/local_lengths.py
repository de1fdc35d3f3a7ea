"""Compute the share of every sequence that a rank of context parallelism owns."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .division import divisors, product, quotient
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Rows per program."""


@metadata_kernel
def _local_lengths_kernel(
    seq_lens,
    seq_lens_stride,
    out,
    out_stride,
    num_reqs,
    num_rows,
    rank,
    interleave,
    period,
    POWERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program b: rows [b * BLOCK, (b + 1) * BLOCK) of the buffer.

    A turn of all ranks is `period` tokens. Bound by latency: one load and one store of an
    integer a row, a few kilobytes in total.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length = tl.load(seq_lens + row * seq_lens_stride, mask=row < num_reqs, other=0).to(tl.int64)
    turns = quotient(length, period, POWERS)
    rest = length - product(turns, period, POWERS) - rank.to(tl.int64) * interleave
    share = turns * interleave + tl.minimum(tl.maximum(rest, 0), interleave)
    tl.store(out + row * out_stride, share.to(tl.int32), mask=row < num_rows)


def write_local_lengths(
    seq_lens: torch.Tensor, num_reqs: int, ranks: tuple[int, int, int], out: torch.Tensor
) -> None:
    """Fill the whole of `out` (int32, any stride) by one launch, without a sync.

    `ranks` are the number of ranks, the rank and the interleave. Rows behind `num_reqs`
    become 0.
    """
    size, rank, interleave = ranks
    num_rows = out.shape[0]
    if not num_rows:
        return
    powers, sizes = divisors(size * interleave)
    launch(
        _local_lengths_kernel,
        out.device,
        (cdiv(num_rows, _BLOCK),),
        seq_lens,
        seq_lens.stride(0),
        out,
        out.stride(0),
        num_reqs,
        num_rows,
        rank,
        interleave,
        *sizes,
        POWERS=powers,
        BLOCK=_BLOCK,
    )
