"""Cache rows of the keys that sparse attention selects (SPEC.md section 22)."""

from __future__ import annotations

import torch

from .checking import check_call, checks
from .dispatch import on_device
from .host.sparse_indices import convert

__all__ = ["convert_req_index_to_global_index"]

_checked = checks.follow(globals())


def convert_req_index_to_global_index(
    req_id: torch.Tensor,
    block_table: torch.Tensor,
    token_indices: torch.Tensor,
    block_size: int,
    block_stride_rows: int,
    dcp_size: int = 1,
    dcp_rank: int = 0,
    cp_kv_cache_interleave_size: int = 1,
) -> torch.Tensor:
    """Return the cache row of each selected position, -1 where this rank has none.

    Result and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 22.
    """
    if _checked:
        check_call("convert_req_index_to_global_index", **locals())
    blocks, ranks = (
        (block_size, block_stride_rows),
        (dcp_size, dcp_rank, cp_kv_cache_interleave_size),
    )
    out = torch.empty(token_indices.shape, dtype=torch.int32, device=token_indices.device)
    if on_device(out):
        from .kernels.sparse_indices import convert_positions

        convert_positions(req_id, block_table, token_indices, *blocks, ranks, out)
    else:
        requests = req_id.data_ptr(), req_id.stride(0)
        row, column = block_table.stride()
        table = block_table.data_ptr(), row, column, block_table.shape[1]
        tokens, selected = token_indices.shape
        row, column = token_indices.stride()
        positions = token_indices.data_ptr(), row, column
        sizes = *blocks, *ranks, out.data_ptr()
        convert(tokens, selected, *requests, *table, *positions, *sizes)
    return out
