"""Programs of the causal convolution kernel (SPEC.md section 6)."""

from __future__ import annotations

from typing import Any, Final

import torch

from attnproof.reference.checks.common import check_offsets, check_tensor

from .dispatch import download, on_device, staging, upload
from .host import causal_conv1d as loops

__all__ = [
    "compute_causal_conv1d_metadata",
]

_BLOCK_M: Final = 8
"""Tokens per program of the convolution."""
_MIN_PROGRAMS: Final = 1024
_INT32S: Final = torch.empty(0, dtype=torch.int32)
_INT64S: Final = torch.empty(0, dtype=torch.int64)


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Assign a request, and 8 of its tokens, to each program of the convolution.

    Result and errors as in `reference`. On a device: one copy of the offsets to pinned
    memory with a sync, as the counts are Python ints; then one asynchronous copy of the
    first program of each request, and one kernel that writes both pointers. SPEC.md
    section 6.
    """
    operation = "compute_causal_conv1d_metadata"
    check_tensor(operation, "query_start_loc_p", query_start_loc_p, 1)
    offsets = query_start_loc_p if query_start_loc_p.is_cpu else download(query_start_loc_p)
    if not offsets.is_contiguous():
        offsets = offsets.contiguous()
    length, wide = offsets.numel(), offsets.dtype is torch.int64
    total = loops.count_programs(length, offsets.data_ptr(), wide, _BLOCK_M)
    if total < 0:
        check_offsets(operation, "query_start_loc_p", offsets)

    nums = offsets.new_empty(length - 1)
    mlist, offsetlist = _INT64S.new_empty(total), _INT32S.new_empty(total)
    lists = nums.data_ptr(), mlist.data_ptr(), offsetlist.data_ptr()
    loops.fill_programs(length - 1, offsets.data_ptr(), wide, _BLOCK_M, *lists, total)
    if on_device(query_start_loc_p):
        pointers = _pointers_on_device(offsets, total, query_start_loc_p.device)
    else:
        pointers = _pointers(mlist, offsetlist)
    batch_ptr, token_chunk_offset_ptr = pointers
    programs_of_8 = {
        "nums": nums,
        "tot": total,
        "mlist": mlist,
        "mlist_len": total,
        "offsetlist": offsetlist,
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
    }
    return {_BLOCK_M: programs_of_8}, batch_ptr, token_chunk_offset_ptr


def _pointers(mlist: torch.Tensor, offsetlist: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `batch_ptr` and `token_chunk_offset_ptr` on the CPU."""
    total = mlist.numel()
    length = 2 * max(_MIN_PROGRAMS, total)
    batch_ptr, chunk_ptr = _INT32S.new_empty(length), _INT32S.new_empty(length)
    loops.fill_pointers(
        mlist.data_ptr(),
        offsetlist.data_ptr(),
        total,
        batch_ptr.data_ptr(),
        chunk_ptr.data_ptr(),
        length,
    )
    return batch_ptr, chunk_ptr


def _pointers_on_device(
    offsets: torch.Tensor, total: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both pointers on `device`, written by one kernel."""
    from .kernels.causal_conv1d import write_pointers

    num_reqs, wide = offsets.numel() - 1, offsets.dtype is torch.int64
    first = staging(num_reqs + 1, torch.int64, device)
    loops.fill_first(num_reqs, offsets.data_ptr(), wide, _BLOCK_M, first.data_ptr())
    length = 2 * max(_MIN_PROGRAMS, total)
    pointers = torch.empty((2, length), dtype=torch.int32, device=device)
    write_pointers(upload(first, device), pointers)
    return pointers[0], pointers[1]
