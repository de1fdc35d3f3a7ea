"""Hand out slots for the tokens behind the prefixes of a batch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .row_sums import pages_before, tokens_before
from .versions import metadata_kernel

_BLOCK = 1024
"""Tokens of a request that a program writes at a time."""
_ROWS = 128
"""Earlier requests that a program sums up at a time."""
_MOST_PROGRAMS = 512
"""Programs of a launch beyond which a request gets no second one."""


@metadata_kernel
def _extend_kernel(
    prefixes,
    prefixes_stride,
    lengths,
    lengths_stride,
    last_slots,
    last_stride,
    free,
    free_stride,
    out,
    out_stride,
    num_free,
    num_slots,
    page_size,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (r, b): tiles b, b + B, b + 2B, … of request r's new tokens, B programs a request.

    Tokens up to the end of the prefix's last page follow its last slot, the others are in
    the free pages behind those of earlier requests. No free page is read behind the last.
    Bound by the latency of the R / ROWS tiles of lengths that each program sums up, then by
    the 8 bytes written per token.
    """
    r = tl.program_id(0)
    begin = tokens_before(prefixes, prefixes_stride, lengths, lengths_stride, r, ROWS)
    first_page = pages_before(
        prefixes, prefixes_stride, lengths, lengths_stride, r, page_size, ROWS
    )
    prefix = tl.load(prefixes + r * prefixes_stride).to(tl.int64)
    count = tl.load(lengths + r * lengths_stride).to(tl.int64) - prefix
    next_slot = tl.load(last_slots + r * last_stride).to(tl.int64) + 1
    pages = tl.cdiv(prefix, page_size)
    for tile in range(tl.program_id(1), tl.cdiv(count, BLOCK), tl.num_programs(1)):
        i = tile * BLOCK + tl.arange(0, BLOCK)
        position = prefix + i
        column = position // page_size
        exists = (i < count) & (begin + i < num_slots)
        page = first_page + column - pages
        is_new = exists & (column >= pages) & (page < num_free)
        block = tl.load(free + page * free_stride, mask=is_new, other=0).to(tl.int64)
        fresh = block * page_size + (position - column * page_size)
        slot = tl.where(column >= pages, fresh, next_slot + i)
        tl.store(out + (begin + i) * out_stride, slot, mask=exists)


def extend_pages(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out: torch.Tensor,
    page_size: int,
) -> None:
    """Fill `out` (int64) by one launch, without a sync."""
    rows, slots = seq_lens.shape[0], out.shape[0]
    if not rows or not slots:
        return
    of_each = max(1, min(cdiv(slots, _BLOCK), _MOST_PROGRAMS // rows))
    launch(
        _extend_kernel,
        out.device,
        (rows, of_each),
        prefix_lens,
        prefix_lens.stride(0),
        seq_lens,
        seq_lens.stride(0),
        last_loc,
        last_loc.stride(0),
        free_pages,
        free_pages.stride(0),
        out,
        out.stride(0),
        free_pages.shape[0],
        slots,
        page_size,
        BLOCK=_BLOCK,
        ROWS=_ROWS,
    )
