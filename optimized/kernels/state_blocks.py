"""Take the blocks of each sequence's state from a block table."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Elements of the result per program."""


@metadata_kernel
def _state_blocks_kernel(
    table,
    table_row_stride,
    table_column_stride,
    seq_lens,
    seq_lens_stride,
    out,
    num_blocks,
    width,
    BLOCK_SIZE: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program b: elements [b * BLOCK, (b + 1) * BLOCK) of the dense result.

    A column beyond the table is replaced by its last one, so that no other memory is read.
    Bound by latency: two dependent loads and a store of an integer each.
    """
    place = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = place < num_blocks
    row = place // COUNT
    length = tl.load(seq_lens + row * seq_lens_stride, mask=mask, other=1).to(tl.int64)
    first = tl.maximum(length - 1, 0) // BLOCK_SIZE
    column = tl.minimum(first + (place - row * COUNT), width - 1)
    entry = table + row * table_row_stride + column * table_column_stride
    tl.store(out + place, tl.load(entry, mask=mask, other=0), mask=mask)


def write_state_blocks(
    block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, states: torch.Tensor
) -> None:
    """Fill `states` (R, 1 + K), dense and of the table's dtype, by one launch without a sync."""
    if not states.numel():
        return
    launch(
        _state_blocks_kernel,
        states.device,
        (cdiv(states.numel(), _BLOCK),),
        block_table,
        *block_table.stride(),
        seq_lens,
        seq_lens.stride(0),
        states,
        states.numel(),
        block_table.shape[1],
        BLOCK_SIZE=block_size,
        COUNT=states.shape[1],
        BLOCK=_BLOCK,
    )
