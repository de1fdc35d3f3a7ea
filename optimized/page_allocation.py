"""Slots that are handed out for new tokens (SPEC.md section 15)."""

from __future__ import annotations

import torch

from .checking import check_call, checks
from .dispatch import on_device
from .host import page_allocation as loops
from .host.vectors import vector

__all__ = [
    "alloc_decode",
    "alloc_extend",
]

_checked = checks.follow(globals())


def alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Hand out a slot for each token behind the prefixes; write them to `out_indices`.

    Result and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        check_call("alloc_extend", **locals())
    if on_device(out_indices):
        from .kernels.page_extend import extend_pages

        extend_pages(prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size)
        return
    batch = *vector(prefix_lens), *vector(seq_lens), *vector(last_loc)
    out = out_indices.data_ptr(), out_indices.stride(0)
    loops.extend(seq_lens.shape[0], *batch, *vector(free_pages), page_size, *out)


def alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Hand out a slot for the last token of each sequence; write them to `out_indices`.

    Result and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        check_call("alloc_decode", **locals())
    if on_device(out_indices):
        from .kernels.page_decode import decode_pages

        decode_pages(seq_lens, last_loc, free_pages, out_indices, page_size)
        return
    batch = *vector(seq_lens), *vector(last_loc)
    out = out_indices.data_ptr(), out_indices.stride(0)
    loops.decode(seq_lens.shape[0], *batch, *vector(free_pages), page_size, *out)
