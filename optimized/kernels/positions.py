"""Compute the positions of the new tokens of a batch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .row_sums import sum_before
from .versions import metadata_kernel

_BLOCK = 1024
"""Tokens of a request that a program writes at a time."""
_ROWS = 128
"""Earlier requests that a program sums up at a time."""
_MOST_PROGRAMS = 512
"""Programs of a launch beyond which a request gets no second one."""


@metadata_kernel
def _positions_kernel(
    prefixes,
    prefixes_stride,
    lengths,
    lengths_stride,
    positions,
    starts,
    total,
    PREFIXED: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Program (r, b): tiles b, b + B, b + 2B, … of request r's tokens, B programs a request.

    Program (r, 0) also writes the index of the request's first token. Without PREFIXED all
    requests begin at position 0. Bound by the latency of the R / ROWS tiles of lengths that
    each program sums up, then by the 8 bytes written per token.
    """
    r = tl.program_id(0)
    begin = sum_before(lengths, lengths_stride, r, ROWS)
    if tl.program_id(1) == 0:
        tl.store(starts + r, begin)
    first = tl.load(prefixes + r * prefixes_stride).to(tl.int64) if PREFIXED else 0
    count = tl.load(lengths + r * lengths_stride).to(tl.int64)
    for tile in range(tl.program_id(1), tl.cdiv(count, BLOCK), tl.num_programs(1)):
        i = tile * BLOCK + tl.arange(0, BLOCK)
        exists = (i < count) & (begin + i < total)
        tl.store(positions + begin + i, (first + i).to(tl.int64), mask=exists)


def write_positions(
    prefixes: torch.Tensor | None,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    starts: torch.Tensor,
) -> None:
    """Fill `positions` (T,) int64 and `starts` (R,) int32 by one launch, without a sync."""
    rows, total = lengths.shape[0], positions.shape[0]
    if not rows:
        return
    of_each = max(1, min(cdiv(total, _BLOCK), _MOST_PROGRAMS // rows))
    prefix_lens = lengths if prefixes is None else prefixes
    launch(
        _positions_kernel,
        positions.device,
        (rows, of_each),
        prefix_lens,
        prefix_lens.stride(0),
        lengths,
        lengths.stride(0),
        positions,
        starts,
        total,
        PREFIXED=prefixes is not None,
        BLOCK=_BLOCK,
        ROWS=_ROWS,
    )
