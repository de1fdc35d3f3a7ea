"""Compute the slots of a batch whose queries got further tokens."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Tokens per program."""


@metadata_kernel
def _new_slots_kernel(
    offsets,
    offsets_stride,
    table,
    table_row_stride,
    table_column_stride,
    positions,
    positions_stride,
    rejected,
    rejected_stride,
    out,
    num_reqs,
    first_step,
    width,
    added_per_row,
    max_model_len,
    num_slots,
    block_size,
    BLOCK: tl.constexpr,
):
    """Program b: slots [b * BLOCK, (b + 1) * BLOCK).

    Row r begins at its offset + r * added_per_row. Bound by the latency of `row_of`, then of
    position and block id.
    """
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    request = row_of(token, offsets, offsets_stride, added_per_row, first_step, num_reqs)
    exists = token < num_slots
    live = exists & (request < num_reqs)
    position = tl.load(positions + token * positions_stride, mask=live, other=0).to(tl.int64)
    dropped = tl.load(rejected + token * rejected_stride, mask=live, other=1)
    column = position // block_size
    kept = live & (dropped == 0) & (position < max_model_len) & (column < width)
    entry = table + request * table_row_stride + column * table_column_stride
    block = tl.load(entry, mask=kept, other=0).to(tl.int64)
    slot = block * block_size + (position - column * block_size)
    tl.store(out + token, tl.where(kept, slot, -1), mask=exists)


def new_slots_on_device(
    offsets: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
    rejected: torch.Tensor,
    block_size: int,
    added_per_row: int,
    max_model_len: int,
) -> torch.Tensor:
    """Return the slots of all entries of `positions`, int64, by one launch."""
    num_reqs, width = block_table.shape
    num_slots = positions.shape[0]
    out = torch.empty(num_slots, dtype=torch.int64, device=positions.device)
    if num_slots == 0:
        return out
    launch(
        _new_slots_kernel,
        positions.device,
        (cdiv(num_slots, _BLOCK),),
        offsets,
        offsets.stride(0),
        block_table,
        *block_table.stride(),
        positions,
        positions.stride(0),
        rejected,
        rejected.stride(0),
        out,
        num_reqs,
        first_step(num_reqs),
        width,
        added_per_row,
        max_model_len,
        num_slots,
        block_size,
        BLOCK=_BLOCK,
    )
    return out
