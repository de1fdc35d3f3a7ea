"""Hand out a slot for the last token of each request."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_ROWS = 256
"""Requests per program."""


@metadata_kernel
def _decode_kernel(
    lengths,
    lengths_stride,
    last_slots,
    last_stride,
    free,
    free_stride,
    out,
    out_stride,
    num_reqs,
    num_free,
    page_size,
    ROWS: tl.constexpr,
):
    """Program b: requests [b * ROWS, (b + 1) * ROWS).

    A token at the first place of a page gets the next free page; the program counts those of
    earlier requests. No free page is read behind the last. Bound by the latency of these b
    tiles of lengths, which all programs share in the cache.
    """
    first = tl.program_id(0) * ROWS
    begun = tl.zeros([ROWS], tl.int64)
    for start in range(0, first, ROWS):
        length = tl.load(lengths + (start + tl.arange(0, ROWS)) * lengths_stride)
        begun += ((length - 1) % page_size == 0).to(tl.int64)
    r = first + tl.arange(0, ROWS)
    exists = r < num_reqs
    length = tl.load(lengths + r * lengths_stride, mask=exists, other=0)
    begins = exists & ((length - 1) % page_size == 0)
    page = tl.sum(begun) + tl.cumsum(begins.to(tl.int64)) - 1
    block = tl.load(free + page * free_stride, mask=begins & (page < num_free), other=0)
    last = tl.load(last_slots + r * last_stride, mask=exists, other=0).to(tl.int64)
    slot = tl.where(begins, block.to(tl.int64) * page_size, last + 1)
    tl.store(out + r * out_stride, slot, mask=exists)


def decode_pages(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out: torch.Tensor,
    page_size: int,
) -> None:
    """Fill `out` (R,) int64 by one launch, without a sync."""
    rows = seq_lens.shape[0]
    if not rows:
        return
    launch(
        _decode_kernel,
        out.device,
        (cdiv(rows, _ROWS),),
        seq_lens,
        seq_lens.stride(0),
        last_loc,
        last_loc.stride(0),
        free_pages,
        free_pages.stride(0),
        out,
        out.stride(0),
        rows,
        free_pages.shape[0],
        page_size,
        ROWS=_ROWS,
    )
