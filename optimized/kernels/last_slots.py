"""Read the slot of the last token of each prefix."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_ROWS = 256
"""Requests per program."""


@metadata_kernel
def _last_slots_kernel(
    table,
    table_row_stride,
    table_column_stride,
    pool,
    pool_stride,
    lengths,
    lengths_stride,
    out,
    num_reqs,
    ROWS: tl.constexpr,
):
    """Program b: requests [b * ROWS, (b + 1) * ROWS).

    Bound by the latency of three loads, the last of them from a row of its own.
    """
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = r < num_reqs
    length = tl.load(lengths + r * lengths_stride, mask=exists, other=0).to(tl.int64)
    row = tl.load(pool + r * pool_stride, mask=exists, other=0).to(tl.int64)
    last = table + row * table_row_stride + (length - 1) * table_column_stride
    slot = tl.load(last, mask=length > 0, other=-1)
    tl.store(out + r, slot.to(tl.int64), mask=exists)


def read_last_slots(
    table: torch.Tensor, pool: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor
) -> None:
    """Fill `out` (R,), dense, by one launch without a sync."""
    rows = lengths.shape[0]
    if not rows:
        return
    launch(
        _last_slots_kernel,
        out.device,
        (cdiv(rows, _ROWS),),
        table,
        *table.stride(),
        pool,
        pool.stride(0),
        lengths,
        lengths.stride(0),
        out,
        rows,
        ROWS=_ROWS,
    )
