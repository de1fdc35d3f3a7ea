"""Write staged block ids into the rows of request slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import launch
from .pointers import int32_pointer
from .versions import metadata_kernel

_BLOCK = 512
"""Block ids per iteration."""
FIELDS = 5
"""Numbers of a write: group, slot, first column, column behind the last, place of its ids."""


@metadata_kernel
def _staged_writes_kernel(
    packed, tables, widths, num_blocks, num_blocks_stride, FIELDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Program w: write w, and the number of blocks of its row.

    No two writes have the same row, so their order does not matter. Bound by latency: five
    loads, then 8 bytes a block id, a few ids in most steps.
    """
    write = packed + tl.program_id(0) * FIELDS
    group, slot = tl.load(write), tl.load(write + 1).to(tl.int64)
    start, end, place = tl.load(write + 2), tl.load(write + 3), tl.load(write + 4)
    row = int32_pointer(tables, group) + slot * tl.load(widths + group) + start
    for first in range(0, end - start, BLOCK):
        index = first + tl.arange(0, BLOCK)
        mask = index < end - start
        tl.store(row + index, tl.load(packed + place + index, mask=mask), mask=mask)
    tl.store(num_blocks + group * num_blocks_stride + slot, end)


def write_staged(
    packed: torch.Tensor,
    writes: int,
    tables: torch.Tensor,
    widths: torch.Tensor,
    num_blocks: torch.Tensor,
) -> None:
    """Apply the writes by one launch, without a sync.

    `packed` int32 holds `FIELDS` numbers of each write and then all block ids.
    """
    launch(
        _staged_writes_kernel,
        packed.device,
        (writes,),
        packed,
        tables,
        widths,
        num_blocks,
        num_blocks.stride(0),
        FIELDS=FIELDS,
        BLOCK=_BLOCK,
    )
