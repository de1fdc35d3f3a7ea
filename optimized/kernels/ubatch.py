"""Compute offsets and lengths of all micro-batches from the device tensors of the parent."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from ..dispatch import staging, upload
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Rows per program."""


@metadata_kernel
def _slice_rows_kernel(
    query_start_loc,
    query_start_loc_stride,
    seq_lens,
    seq_lens_stride,
    slices,
    row_begin,
    row_end,
    token_begin,
    token_end,
    child_starts,
    child_seq_lens,
    ONE_SLICE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (u, b): rows [b * BLOCK, (b + 1) * BLOCK) of slice u's offsets and lengths.

    `slices` is (slices, 5): rows [r0, r1), tokens [t0, t1), and the number of rows in
    earlier slices. With ONE_SLICE the same numbers are scalar arguments. Bound by latency:
    three loads and two stores of one integer a row, a few kilobytes in total.
    """
    u = tl.program_id(0)
    if ONE_SLICE:
        r0, r1, t0, t1, before = row_begin, row_end, token_begin, token_end, 0
    else:
        r0, r1 = tl.load(slices + u * 5), tl.load(slices + u * 5 + 1)
        t0, t1 = tl.load(slices + u * 5 + 2), tl.load(slices + u * 5 + 3)
        before = tl.load(slices + u * 5 + 4)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    has_request = row < r1 - r0
    offset = query_start_loc + (r0 + row) * query_start_loc_stride
    start = tl.load(offset, mask=row <= r1 - r0, other=0)
    end = tl.load(offset + query_start_loc_stride, mask=has_request, other=0)
    length = tl.load(seq_lens + (r0 + row) * seq_lens_stride, mask=has_request, other=0)
    rebased = tl.minimum(tl.maximum(start, t0), t1) - t0
    tl.store(child_starts + before + u + row, rebased, mask=row <= r1 - r0)
    kept = length - tl.maximum(end - t1, 0)
    tl.store(child_seq_lens + before + row, kept, mask=has_request)


def slice_rows_on_device(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    bounds: list[tuple[int, int, int, int]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (query_start_loc, seq_lens) of each slice (r0, r1, t0, t1), by one launch.

    The results are views of one buffer of offsets and one of lengths. One slice needs no
    copy to the device; several need one copy of 5 int64 a slice.
    """
    device = query_start_loc.device
    counts = [r1 - r0 for r0, r1, _, _ in bounds]
    before = [sum(counts[:u]) for u in range(len(counts))]
    total = sum(counts)
    starts = torch.empty(total + len(counts), dtype=query_start_loc.dtype, device=device)
    lengths = torch.empty(total, dtype=seq_lens.dtype, device=device)
    slices = starts if len(bounds) == 1 else _table(bounds, before, device)
    grid = (len(counts), cdiv(max(counts) + 1, _BLOCK))
    launch(
        _slice_rows_kernel,
        device,
        grid,
        query_start_loc,
        query_start_loc.stride(0),
        seq_lens,
        seq_lens.stride(0),
        slices,
        *bounds[0],
        starts,
        lengths,
        ONE_SLICE=len(bounds) == 1,
        BLOCK=_BLOCK,
    )
    rows = enumerate(zip(before, counts, strict=True))
    return [(starts[b + u : b + u + n + 1], lengths[b : b + n]) for u, (b, n) in rows]


def _table(
    bounds: list[tuple[int, int, int, int]], before: list[int], device: torch.device
) -> torch.Tensor:
    staged = staging(5 * len(bounds), torch.int64, device)
    rows = [value for b, rows in zip(bounds, before, strict=True) for value in (*b, rows)]
    staged.numpy()[:] = rows
    return upload(staged, device)
