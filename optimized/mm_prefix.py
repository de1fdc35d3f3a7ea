"""Lay out ranges of prompt positions that attend to each other (SPEC.md section 11)."""

from __future__ import annotations

import numpy as np
import torch

from attnproof.reference.checks.common import check_int
from attnproof.reference.checks.mm_prefix import Ranges, check_ranges

from .checking import check_call, checks
from .dispatch import staging, upload

__all__ = [
    "compute_mm_prefix_range_tensor",
    "fill_mm_prefix_query_ranges",
]

_checked = checks.follow(globals())


def fill_mm_prefix_query_ranges(
    out: np.ndarray,
    mm_prefix_range: Ranges | None,
    query_start_loc_cpu: torch.Tensor,
    seq_lens_cpu: torch.Tensor,
) -> int:
    """Write the range that each query token lies in; return the number of rows written.

    Result, shapes and errors as in `reference`. One pass over the ranges, not over the
    tokens. SPEC.md section 11.
    """
    if _checked:
        check_call("fill_mm_prefix_query_ranges", **locals())
    if not mm_prefix_range:
        return 0
    offsets, seq_lens = query_start_loc_cpu.numpy(), seq_lens_cpu.numpy()
    spans = []
    for row, pairs in mm_prefix_range.items():
        first, stop = int(offsets[row]), int(offsets[row + 1])
        shift = stop - int(seq_lens[row])  # the token of position 0, which may be negative
        for start, end in pairs:
            begin, behind = max(start + shift, first), min(end + shift + 1, stop)
            if start < end and begin < behind:
                spans.append((begin, behind, start, end))
    if not spans:
        return 0
    tokens = int(offsets[-1])
    out[:tokens] = -1
    for begin, behind, start, end in spans:
        out[begin:behind] = start, end
    return tokens


def compute_mm_prefix_range_tensor(
    mm_prefix_range: Ranges | None, num_seqs: int, device: torch.device
) -> torch.Tensor | None:
    """Return the ranges of each sequence, (num_seqs, M, 2) int32 on `device`, None without any.

    Result and errors as in `reference`. To a device: one asynchronous copy from pinned memory,
    no sync. SPEC.md section 11.
    """
    if _checked:
        operation = "compute_mm_prefix_range_tensor"
        check_int(operation, "num_seqs", num_seqs, 0)
        check_ranges(operation, mm_prefix_range, num_seqs)
    if not mm_prefix_range:
        return None
    rows = [
        [pair for pair in mm_prefix_range.get(r, ()) if pair[0] < pair[1]] for r in range(num_seqs)
    ]
    most = max(map(len, rows), default=0)
    if not most:
        return None
    device = torch.device(device)
    staged = staging(num_seqs * most * 2, torch.int32, device)
    laid_out = staged.numpy().reshape(num_seqs, most, 2)
    laid_out.fill(0)
    for r, pairs in enumerate(rows):
        if pairs:
            laid_out[r, : len(pairs)] = pairs
    return upload(staged, device).view(num_seqs, most, 2)
