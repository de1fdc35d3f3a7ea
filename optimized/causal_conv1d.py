"""Programs of the causal convolution's kernel (SPEC.md section 6)."""

from __future__ import annotations

from typing import Any, Final

import torch

from reference.interface.checks import check_offsets, check_tensor

from .dispatch import download, on_device, staging, upload
from .host.arrays import array
from .host.causal_conv1d import count_programs, fill_pointers, fill_programs

_BLOCK_M: Final = 8
"""Tokens per program of the convolution."""
_MIN_PROGRAMS: Final = 1024


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Which request, and which 8 of its tokens, each program of the convolution takes.

    Same result and errors as `reference`. On a device: the offsets are copied to pinned
    memory and waited for, as the counts are Python ints; the first program of each
    request goes back asynchronously, and one kernel writes both pointers. SPEC.md
    section 6.
    """
    operation = "compute_causal_conv1d_metadata"
    check_tensor(operation, "query_start_loc_p", query_start_loc_p, 1)
    offsets = query_start_loc_p
    if not offsets.is_cpu:
        offsets = download(offsets)
    num_reqs = max(0, offsets.shape[0] - 1)
    nums = torch.empty(num_reqs, dtype=offsets.dtype)
    device = query_start_loc_p.device
    kernel = on_device(query_start_loc_p)
    first = staging(num_reqs + 1 if kernel else 0, torch.int64, device)
    total = count_programs(array(offsets, offsets.dtype), _BLOCK_M, nums.numpy(), first.numpy())
    if total < 0:
        check_offsets(operation, "query_start_loc_p", offsets)

    mlist = torch.empty(total, dtype=torch.int64)
    offsetlist = torch.empty(total, dtype=torch.int32)
    fill_programs(nums.numpy(), mlist.numpy(), offsetlist.numpy())
    pointers = torch.empty((2, 2 * max(_MIN_PROGRAMS, total)), dtype=torch.int32, device=device)
    if kernel:
        from .kernels.causal_conv1d import write_pointers

        write_pointers(upload(first, device), pointers)
    else:
        fill_pointers(mlist.numpy(), offsetlist.numpy(), pointers.numpy())
    batch_ptr, token_chunk_offset_ptr = pointers[0], pointers[1]
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
