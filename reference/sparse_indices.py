"""Cache rows of the keys that sparse attention selects (SPEC.md section 22)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch

from .definition.definition import operation
from .definition.roles import Array, BlockSize, Int

__all__ = ["convert_req_index_to_global_index"]

_Requests = Annotated[torch.Tensor, Array("request indices", dtype=torch.int32)]
_Table = Annotated[torch.Tensor, Array("block table", dtype=torch.int32)]
_Indices = Annotated[torch.Tensor, Array("numbers", ("T", "K"), dtype=torch.int32)]


def _within_turns(
    block_size: int, cp_kv_cache_interleave_size: int
) -> Iterator[tuple[str, Any, str]]:
    wrong = block_size % cp_kv_cache_interleave_size != 0
    yield "cp_kv_cache_interleave_size", wrong, f"a divisor of {block_size}"


@operation(requires=(_within_turns,))
def convert_req_index_to_global_index(
    req_id: _Requests,
    block_table: _Table,
    token_indices: _Indices,
    block_size: BlockSize,
    block_stride_rows: Annotated[int, Int(least="block_size")],
    dcp_size: Annotated[int, Int(least=1)] = 1,
    dcp_rank: Annotated[int, Int(below="dcp_size")] = 0,
    cp_kv_cache_interleave_size: Annotated[int, Int(least=1)] = 1,
) -> Annotated[torch.Tensor, Array("numbers", ("T", "K"), dtype=torch.int32)]:
    """Return the cache row of each selected position, -1 where this rank has none.

    All tensors are int32 on one device: `token_indices` (T, K) are positions of the request
    `req_id` (T,) of each query token, negative for none, and `block_table` is (R, W). Blocks have
    `block_size` tokens and are `block_stride_rows` rows apart. A position that another rank owns
    (section 10), or beyond the table's columns, has no row. The result is (T, K). Raise
    MetadataError for numbers out of range. SPEC.md section 22.
    """
    table, width = block_table.tolist(), block_table.shape[1]
    rows = []
    for request, positions in zip(req_id.tolist(), token_indices.tolist(), strict=True):
        for position in positions:
            turn, place = divmod(position, cp_kv_cache_interleave_size)
            local = turn // dcp_size * cp_kv_cache_interleave_size + place
            column, offset = divmod(local, block_size)
            owned = position >= 0 and turn % dcp_size == dcp_rank
            row = -1
            if owned and column < width:
                row = table[request][column] * block_stride_rows + offset
            rows.append(row)
    return torch.tensor(rows, dtype=torch.int32, device=req_id.device).reshape(token_indices.shape)
