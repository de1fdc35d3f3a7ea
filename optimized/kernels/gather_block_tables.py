"""Gather the block tables of a step from the rows of request slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .pointers import int32_pointer
from .versions import metadata_kernel

_BLOCK = 1024
"""Columns per program."""


@metadata_kernel
def _gather_block_tables_kernel(
    idx_mapping,
    tables,
    out_tables,
    widths,
    num_blocks,
    num_blocks_stride,
    num_reqs,
    BLOCK: tl.constexpr,
):
    """Program (r, g, b): columns [b * BLOCK, (b + 1) * BLOCK) of row r in group g.

    Columns behind the slot's blocks, and all of dummy and padded rows, become 0: a captured
    graph may read the whole row, which held the blocks of another request. Bound by memory,
    8 bytes a live column and 4 bytes any other.
    """
    row, group = tl.program_id(0), tl.program_id(1)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    width = tl.load(widths + group).to(tl.int64)
    slot = tl.load(idx_mapping + row, mask=row < num_reqs, other=-1).to(tl.int64)
    live = tl.load(num_blocks + group * num_blocks_stride + slot, mask=slot >= 0, other=0)
    held = int32_pointer(tables, group) + slot * width
    blocks = tl.load(held + column, mask=column < live, other=0)
    out = int32_pointer(out_tables, group) + row.to(tl.int64) * width
    tl.store(out + column, blocks, mask=column < width)


def gather_on_device(
    idx_mapping: torch.Tensor,
    tables: torch.Tensor,
    out_tables: torch.Tensor,
    widths: torch.Tensor,
    num_blocks: torch.Tensor,
    num_reqs_padded: int,
    widest: int,
) -> None:
    """Write `num_reqs_padded` rows of all groups by one launch, without a sync.

    `tables` and `out_tables` are (G,) addresses, `widths` (G,) their columns, of which
    `widest` is the most, and `num_blocks` (G, slots) the live blocks.
    """
    groups = widths.shape[0]
    if num_reqs_padded == 0 or groups == 0:
        return
    launch(
        _gather_block_tables_kernel,
        idx_mapping.device,
        (num_reqs_padded, groups, cdiv(widest, _BLOCK)),
        idx_mapping,
        tables,
        out_tables,
        widths,
        num_blocks,
        num_blocks.stride(0),
        idx_mapping.shape[0],
        BLOCK=_BLOCK,
    )
