"""Offsets of the batch that only has the sampled tokens."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..dispatch import launching_on

_ROWS = 16
_INDICES = 256
"""Offsets and token indices that are compared at a time."""


@triton.jit(do_not_specialize=["num_reqs", "num_indices", "num_actual_tokens"])
def _count_sampled_kernel(
    query_start_loc,
    query_start_loc_stride,
    indices,
    indices_stride,
    counted,
    num_reqs,
    num_indices,
    num_actual_tokens,
    ROWS: tl.constexpr,
    INDICES: tl.constexpr,
):
    """Program b: the new offsets of ROWS requests, and how many indices are no token.

    A new offset is the number of indices below the old one, so the order of the indices
    does not matter, nothing is added up across programs, and an index in a batch's
    padding counts for nobody. Row R + 1 counts the malformed ones. Bound by the latency
    of the N / INDICES tiles that each program reads, which all programs share in the
    cache.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_offset = row <= num_reqs
    bound = tl.load(query_start_loc + row * query_start_loc_stride, mask=is_offset, other=0)
    count = tl.zeros([ROWS], tl.int32)
    for first in range(0, num_indices, INDICES):
        i = first + tl.arange(0, INDICES)
        exists = i < num_indices
        index = tl.load(indices + i * indices_stride, mask=exists, other=0)
        below = (index[None, :] < bound[:, None]) & is_offset[:, None]
        malformed = (index < 0) | (index >= num_actual_tokens)
        counts = (below | (malformed[None, :] & (row == num_reqs + 1)[:, None])) & exists[None, :]
        count += tl.sum(counts.to(tl.int32), axis=1)
    tl.store(counted + row, count, mask=row <= num_reqs + 1)


def count_sampled_on_device(
    query_start_loc: torch.Tensor,
    indices: torch.Tensor,
    num_actual_tokens: int,
    counted: torch.Tensor,
) -> None:
    """Fill `counted` (R+2): the reduced batch's offsets, then the indices that are no token."""
    num_rows = counted.shape[0]
    with launching_on(counted.device):
        _count_sampled_kernel[(triton.cdiv(num_rows, _ROWS),)](
            query_start_loc,
            query_start_loc.stride(0),
            indices,
            indices.stride(0),
            counted,
            num_rows - 2,
            indices.shape[0],
            num_actual_tokens,
            ROWS=_ROWS,
            INDICES=_INDICES,
        )
