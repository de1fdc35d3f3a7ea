"""Compute the offsets of a batch reduced to its sampled tokens."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_ROWS = 16
"""Offsets per program."""
_INDICES = 256
"""Token indices that a program compares with its offsets at a time."""


@metadata_kernel
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
    """Program b: the new offsets of ROWS requests, and the number of malformed indices.

    A new offset is the number of indices below the old offset: the order of the indices
    does not matter, programs are independent, and an index in the padding counts for no
    request. Row R + 1 counts the indices that are not a token. Bound by the latency of the
    N / INDICES tiles that each program reads, which all programs share in the cache.
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
    """Fill `counted` (R+2): offsets of the reduced batch, then the number of malformed indices."""
    num_rows = counted.shape[0]
    launch(
        _count_sampled_kernel,
        counted.device,
        (cdiv(num_rows, _ROWS),),
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
