"""Convert the positions that sparse attention selects to rows of a cache."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 512
"""Positions per program."""


@metadata_kernel
def _convert_kernel(
    requests,
    requests_stride,
    table,
    row_stride,
    column_stride,
    width,
    positions,
    token_stride,
    position_stride,
    out,
    selected,
    block_size,
    block_stride_rows,
    size,
    rank,
    interleave,
    BLOCK: tl.constexpr,
):
    """Program (t, b): positions [b * BLOCK, (b + 1) * BLOCK) of token t.

    Bound by memory: 4 bytes read and written per position, and the table's entries from cache.
    """
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = i < selected
    entry = positions + t * token_stride + i.to(tl.int64) * position_stride
    position = tl.load(entry, mask=exists, other=-1)
    turn = position // interleave
    local = turn // size * interleave + position % interleave
    column = local // block_size
    found = (position >= 0) & (turn % size == rank) & (column < width)
    request = tl.load(requests + t * requests_stride).to(tl.int64)
    at = request * row_stride + column.to(tl.int64) * column_stride
    block = tl.load(table + at, mask=found, other=0)
    row = block * block_stride_rows + local % block_size
    tl.store(out + t * selected + i, tl.where(found, row, -1), mask=exists)


def convert_positions(
    requests: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    block_stride_rows: int,
    ranks: tuple[int, int, int],
    out: torch.Tensor,
) -> None:
    """Fill `out` (T, K), dense int32, by one launch; `ranks` are size, rank and interleave."""
    tokens, selected = positions.shape
    if not tokens or not selected:
        return
    launch(
        _convert_kernel,
        out.device,
        (tokens, cdiv(selected, _BLOCK)),
        requests,
        requests.stride(0),
        table,
        *table.stride(),
        table.shape[1],
        positions,
        *positions.stride(),
        out,
        selected,
        block_size,
        block_stride_rows,
        *ranks,
        BLOCK=_BLOCK,
    )
