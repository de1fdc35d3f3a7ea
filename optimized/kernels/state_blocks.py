"""Take the blocks of each sequence's state from a block table."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .division import divisors, quotient
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Rows per program."""


@metadata_kernel
def _state_blocks_kernel(
    table,
    table_row_stride,
    table_column_stride,
    seq_lens,
    seq_lens_stride,
    out,
    num_reqs,
    width,
    block_size,
    POWERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (b, k): column k of rows [b * BLOCK, (b + 1) * BLOCK) of the dense result.

    A column beyond the table is replaced by its last one, so that no other memory is read.
    Bound by latency: two dependent loads and a store of an integer each.
    """
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    mask = row < num_reqs
    length = tl.load(seq_lens + row * seq_lens_stride, mask=mask, other=1).to(tl.int64)
    first = quotient(tl.maximum(length - 1, 0), block_size, POWERS)
    column = tl.minimum(first + tl.program_id(1), width - 1)
    block = tl.load(table + row * table_row_stride + column * table_column_stride, mask=mask)
    tl.store(out + row * tl.num_programs(1) + tl.program_id(1), block, mask=mask)


def write_state_blocks(
    block_table: torch.Tensor, seq_lens: torch.Tensor, block_size: int, states: torch.Tensor
) -> None:
    """Fill `states` (R, 1 + K), dense and of the table's dtype, by one launch without a sync."""
    if not states.numel():
        return
    powers, sizes = divisors(block_size)
    launch(
        _state_blocks_kernel,
        states.device,
        (cdiv(states.shape[0], _BLOCK), states.shape[1]),
        block_table,
        *block_table.stride(),
        seq_lens,
        seq_lens.stride(0),
        states,
        states.shape[0],
        block_table.shape[1],
        *sizes,
        POWERS=powers,
        BLOCK=_BLOCK,
    )
