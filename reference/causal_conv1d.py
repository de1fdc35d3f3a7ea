"""Programs of the causal convolution kernel (SPEC.md section 6)."""

from __future__ import annotations

from typing import Any, Final

import torch

from .checks.common import check_offsets, check_tensor
from .interface import PAD_SLOT_ID

__all__ = [
    "compute_causal_conv1d_metadata",
]

_BLOCK_M: Final = 8
"""Tokens per program of the convolution."""
_MIN_PROGRAMS: Final = 1024
"""Minimum number of programs that a pointer has room for; its length is twice that number."""


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Assign a request, and 8 of its tokens, to each program of the convolution.

    `query_start_loc_p` (R+1,) int32 or int64 holds the offsets of the prefills. Return
    (nums_dict, batch_ptr, token_chunk_offset_ptr). `nums_dict[8]` holds on the CPU:
    `nums` (R,) programs per request, of the argument's dtype; `mlist` (programs,) int64
    request of each program; `offsetlist` (programs,) int32 number of each program within
    its request; `tot` and `mlist_len`, the number of programs. It also holds the two
    pointers: int32 of length 2 * max(1024, programs) on the device of the argument,
    `mlist` and `offsetlist` followed by -1. Raise MetadataError for offsets that do not
    start at 0 or that decrease. SPEC.md section 6.
    """
    operation = "compute_causal_conv1d_metadata"
    check_tensor(operation, "query_start_loc_p", query_start_loc_p, 1)
    offsets = query_start_loc_p.cpu()
    check_offsets(operation, "query_start_loc_p", offsets)

    starts = offsets.tolist()
    nums, mlist, offsetlist = [], [], []
    for request in range(len(starts) - 1):
        query_len = starts[request + 1] - starts[request]
        programs = -(-query_len // _BLOCK_M)
        nums.append(programs)
        for program in range(programs):
            mlist.append(request)
            offsetlist.append(program)

    padding = [PAD_SLOT_ID] * (2 * max(_MIN_PROGRAMS, len(mlist)) - len(mlist))
    device = query_start_loc_p.device
    batch_ptr = torch.tensor(mlist + padding, dtype=torch.int32, device=device)
    token_chunk_offset_ptr = torch.tensor(offsetlist + padding, dtype=torch.int32, device=device)
    programs_of_8 = {
        "nums": torch.tensor(nums, dtype=offsets.dtype),
        "tot": sum(nums),
        "mlist": torch.tensor(mlist, dtype=torch.int64),
        "mlist_len": len(mlist),
        "offsetlist": torch.tensor(offsetlist, dtype=torch.int32),
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
    }
    return {_BLOCK_M: programs_of_8}, batch_ptr, token_chunk_offset_ptr
