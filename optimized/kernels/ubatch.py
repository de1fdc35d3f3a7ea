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
_MOST_SCALAR = 2
"""Slices whose bounds are arguments, which is all that most engines make."""
_ALIGNMENT = 32
"""Elements between possible starts of a result: 128 bytes at least, as in separate allocations."""


@metadata_kernel
def _slice_rows_kernel(
    query_start_loc,
    query_start_loc_stride,
    seq_lens,
    seq_lens_stride,
    slices,
    first_r0,
    first_r1,
    first_t0,
    first_t1,
    last_r0,
    last_r1,
    last_t0,
    last_t1,
    child_starts,
    child_seq_lens,
    stride,
    TABLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (u, b): rows [b * BLOCK, (b + 1) * BLOCK) of slice u's offsets and lengths.

    With TABLE `slices` is (slices, 4): rows [r0, r1) and tokens [t0, t1). Otherwise there are at
    most two, in the scalar arguments. Results of a slice are `stride` elements apart. Bound by
    latency: three loads and two stores of one integer a row, a few kilobytes in total.
    """
    u = tl.program_id(0).to(tl.int64)
    if TABLE:
        r0, r1 = tl.load(slices + u * 4), tl.load(slices + u * 4 + 1)
        t0, t1 = tl.load(slices + u * 4 + 2), tl.load(slices + u * 4 + 3)
    else:
        r0, r1 = tl.where(u == 0, first_r0, last_r0), tl.where(u == 0, first_r1, last_r1)
        t0, t1 = tl.where(u == 0, first_t0, last_t0), tl.where(u == 0, first_t1, last_t1)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    has_request = row < r1 - r0
    offset = query_start_loc + (r0 + row) * query_start_loc_stride
    start = tl.load(offset, mask=row <= r1 - r0, other=0)
    end = tl.load(offset + query_start_loc_stride, mask=has_request, other=0)
    length = tl.load(seq_lens + (r0 + row) * seq_lens_stride, mask=has_request, other=0)
    rebased = tl.minimum(tl.maximum(start, t0), t1) - t0
    tl.store(child_starts + u * stride + row, rebased, mask=row <= r1 - r0)
    kept = length - tl.maximum(end - t1, 0)
    tl.store(child_seq_lens + u * stride + row, kept, mask=has_request)


def slice_rows_on_device(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    bounds: list[tuple[int, int, int, int]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (query_start_loc, seq_lens) of each slice (r0, r1, t0, t1), by one launch.

    The results are views of one buffer of offsets and one of lengths. Up to two slices need no
    copy to the device; more need one copy of 4 int64 a slice.
    """
    device, tabled = query_start_loc.device, len(bounds) > _MOST_SCALAR
    counts = [r1 - r0 for r0, r1, _, _ in bounds]
    most = max(counts)
    stride = cdiv(most + 1, _ALIGNMENT) * _ALIGNMENT
    starts = torch.empty(len(bounds) * stride, dtype=query_start_loc.dtype, device=device)
    lengths = torch.empty(len(bounds) * stride, dtype=seq_lens.dtype, device=device)
    launch(
        _slice_rows_kernel,
        device,
        (len(bounds), cdiv(most + 1, _BLOCK)),
        query_start_loc,
        query_start_loc.stride(0),
        seq_lens,
        seq_lens.stride(0),
        _table(bounds, device) if tabled else starts,
        *bounds[0],
        *bounds[-1],
        starts,
        lengths,
        stride,
        TABLE=tabled,
        BLOCK=_BLOCK,
    )
    places = zip(range(0, len(bounds) * stride, stride), counts, strict=True)
    return [(starts[at : at + n + 1], lengths[at : at + n]) for at, n in places]


def _table(bounds: list[tuple[int, int, int, int]], device: torch.device) -> torch.Tensor:
    staged = staging(4 * len(bounds), torch.int64, device)
    staged.numpy()[:] = [value for row in bounds for value in row]
    return upload(staged, device)
