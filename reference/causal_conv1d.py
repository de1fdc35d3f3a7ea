"""Programs of the causal convolution's kernel (SPEC.md section 6)."""

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


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Which request, and which 8 of its tokens, each program of the convolution takes.

    `query_start_loc_p` (R+1,) int32 or int64 are the prefills' offsets. Returns
    (nums_dict, batch_ptr, token_chunk_offset_ptr). `nums_dict[8]` holds `nums` (R,)
    programs per request, its dtype, `mlist` (programs,) int64 request and `offsetlist`
    (programs,) int32 number within the request, all on the CPU; `tot` and `mlist_len`,
    their count; and the two pointers: int32 of length 2 * max(1024, programs) on the
    device of the argument, `mlist` and `offsetlist` with -1 behind them. MetadataError
    for offsets that do not rise from 0. SPEC.md section 6.
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
