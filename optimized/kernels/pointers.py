"""Device functions shared by the kernels of a persistent batch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..dispatch import staging, upload


@triton.jit
def int32_pointer(addresses, index):
    """Return element `index` of a table of addresses as a pointer to int32."""
    return tl.load(addresses + index).to(tl.pointer_type(tl.int32))


@triton.jit
def row_of(token, query_start_loc, first_step, num_reqs):
    """Return the row of each token, `num_reqs` for tokens behind the last row.

    It is the last row that starts at or before the token, found by bisection: `first_step` is
    the largest power of two not above the number of rows.
    """
    row = tl.zeros_like(token)
    step = first_step
    while step > 0:
        later = row + step
        exists = later <= num_reqs
        begin = tl.load(query_start_loc + later, mask=exists, other=0)
        row = tl.where(exists & (begin <= token), later, row)
        step = step // 2
    return row


def first_step(rows: int) -> int:
    """Return the first step of the bisection over so many rows."""
    return 1 << rows.bit_length() >> 1


def addresses_of(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the addresses of the tensors as uint64 on the device, by an asynchronous copy."""
    staged = staging(len(tensors), torch.int64, device)
    for index, tensor in enumerate(tensors):
        staged[index] = tensor.data_ptr()
    return upload(staged, device).view(torch.uint64)
