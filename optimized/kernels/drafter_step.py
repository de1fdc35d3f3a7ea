"""Move each request to its next draft token."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 128
"""Rows per program."""


@metadata_kernel
def _step_kernel(
    positions,
    positions_stride,
    table,
    table_row_stride,
    table_column_stride,
    seq_lens,
    seq_lens_stride,
    out_positions,
    out_positions_stride,
    slots,
    slots_stride,
    num_reqs,
    num_slots,
    width,
    max_model_len,
    block_size,
    BLOCK: tl.constexpr,
):
    """Program b: rows [b * BLOCK, (b + 1) * BLOCK), of which those from `num_reqs` on are padding.

    Each row reads and writes its own entries only, so positions may be updated in place.
    Bound by latency: a load of the position, then one of the block id.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = row < num_reqs
    before = tl.load(positions + row * positions_stride, mask=live, other=0).to(tl.int64)
    length = tl.load(seq_lens + row * seq_lens_stride, mask=live, other=0).to(tl.int64)
    ended = before + 1 >= max_model_len
    position = tl.where(ended, 0, before + 1)
    column = position // block_size
    has_slot = live & (before + 1 < max_model_len) & (column < width)
    entry = table + row * table_row_stride + column * table_column_stride
    block = tl.load(entry, mask=has_slot, other=0).to(tl.int64)
    slot = block * block_size + (position - column * block_size)
    grown = tl.where(ended, 1, tl.minimum(length + 1, max_model_len))
    tl.store(out_positions + row * out_positions_stride, position, mask=live)
    tl.store(seq_lens + row * seq_lens_stride, grown, mask=live)
    tl.store(slots + row * slots_stride, tl.where(has_slot, slot, -1), mask=row < num_slots)


def step_on_device(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    max_model_len: int,
    out_positions: torch.Tensor,
    out_slots: torch.Tensor,
    num_slots: int,
) -> None:
    """Write positions and lengths of all rows and `num_slots` slots by one launch."""
    if num_slots == 0:
        return
    num_reqs, width = block_table.shape
    launch(
        _step_kernel,
        positions.device,
        (cdiv(num_slots, _BLOCK),),
        positions,
        positions.stride(0),
        block_table,
        *block_table.stride(),
        seq_lens,
        seq_lens.stride(0),
        out_positions,
        out_positions.stride(0),
        out_slots,
        out_slots.stride(0),
        num_reqs,
        num_slots,
        width,
        max_model_len,
        block_size,
        BLOCK=_BLOCK,
    )
