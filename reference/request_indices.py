"""The request of each query token (SPEC.md section 20)."""

from __future__ import annotations

from typing import Annotated

import torch

from .definition.definition import operation
from .definition.roles import Array, Int, NumTokens, Offsets

__all__ = ["compute_token_to_req_indices"]

_Buffer = Annotated[
    torch.Tensor, Array(shape=("num_tokens",), dtype=torch.int32, written=True, longer=True)
]
_Result = Annotated[
    torch.Tensor, Array("request indices", ("num_tokens",), dtype=torch.int32, may_alias=True)
]


@operation
def compute_token_to_req_indices(
    query_start_loc: Offsets,
    out: _Buffer,
    num_mapped_tokens: NumTokens,
    num_tokens: Annotated[int, Int(least="T")],
) -> _Result:
    """Write the request of each query token to `out`, and 0 for padding; return what is written.

    `query_start_loc` (R+1,) int32 or int64 are the offsets of `num_mapped_tokens` tokens; a row
    without tokens has none. `out` is int32 with `num_tokens` entries or more; those from
    `num_mapped_tokens` on are 0, those from `num_tokens` on keep their values. Return
    `out[:num_tokens]`, a view. Raise MetadataError for offsets of another number of tokens,
    fewer entries than tokens, and a shorter buffer. SPEC.md section 20.
    """
    offsets = query_start_loc.tolist()
    for row in range(len(offsets) - 1):
        for token in range(offsets[row], offsets[row + 1]):
            out[token] = row
    for token in range(num_mapped_tokens, num_tokens):
        out[token] = 0
    return out[:num_tokens]
