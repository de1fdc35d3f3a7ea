"""Lay out ranges of prompt positions that attend to each other (SPEC.md section 11)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from .checks.common import check_int
from .checks.mm_prefix import Ranges, check_ranges
from .definition.definition import operation
from .definition.roles import Array, Object
from .interface import MetadataError

__all__ = [
    "compute_mm_prefix_range_tensor",
    "fill_mm_prefix_query_ranges",
]


def _fit(
    operation: str, out: np.ndarray, mm_prefix_range: Ranges | None, sizes: dict[str, int]
) -> None:
    """Require a buffer with room for each token, and ranges of rows of the batch."""
    if out.dtype != np.int32 or out.ndim != 2 or out.shape[1] != 2 or not out.flags.writeable:
        writeable = "" if out.flags.writeable else "read-only "
        got = f"{writeable}{out.dtype} of shape {out.shape}"
        raise MetadataError(operation, "out", got, "writable int32 of shape (tokens, 2)")
    if len(out) < sizes["T"]:
        raise MetadataError(operation, "out", f"of length {len(out)}", f"at least {sizes['T']}")
    check_ranges(operation, mm_prefix_range, sizes["R"])


@operation(requires=(_fit,))
def fill_mm_prefix_query_ranges(
    out: Annotated[np.ndarray, Object()],
    mm_prefix_range: Annotated[Ranges, Object()] | None,
    query_start_loc_cpu: Annotated[torch.Tensor, Array("query offsets", on_cpu=True)],
    seq_lens_cpu: Annotated[torch.Tensor, Array("sequence lengths", on_cpu=True)],
) -> int:
    """Write the range that each query token lies in; return the number of rows written.

    `out` (at least T, 2) int32 is the caller's buffer, a numpy array. `mm_prefix_range` has
    for some rows inclusive ranges (start, end) of prompt positions that do not overlap;
    those with start >= end are skipped. `query_start_loc_cpu` (R+1,) and `seq_lens_cpu`
    (R,) are int32 or int64. Row i of `out` becomes the range of token i, (-1, -1) outside
    all. Rows behind the T tokens are not written. If no token lies in a range, return 0 and
    write nothing. Raise MetadataError for a row that does not exist, ranges that overlap, a
    buffer that is too small, and malformed lengths. SPEC.md section 11.
    """
    offsets, seq_lens = query_start_loc_cpu.tolist(), seq_lens_cpu.tolist()
    rows = []
    for r, seq_len in enumerate(seq_lens):
        query_len = offsets[r + 1] - offsets[r]
        pairs = [] if mm_prefix_range is None else mm_prefix_range.get(r, [])
        for i in range(query_len):
            position = seq_len - query_len + i
            inside = [(a, b) for a, b in pairs if a < b and a <= position <= b]
            rows.append(inside[0] if inside else (-1, -1))
    if all(row == (-1, -1) for row in rows):
        return 0
    for i, row in enumerate(rows):
        out[i] = row
    return len(rows)


def compute_mm_prefix_range_tensor(
    mm_prefix_range: Ranges | None, num_seqs: int, device: torch.device
) -> torch.Tensor | None:
    """Return the ranges of each sequence, (num_seqs, M, 2) int32 on `device`, None without any.

    `mm_prefix_range` as in `fill_mm_prefix_query_ranges`. M is the most ranges of a sequence;
    shorter rows end with (0, 0), which is no range. Raise MetadataError for a row that does
    not exist and for ranges that overlap. SPEC.md section 11.
    """
    operation = "compute_mm_prefix_range_tensor"
    check_int(operation, "num_seqs", num_seqs, 0)
    check_ranges(operation, mm_prefix_range, num_seqs)
    rows: list[list[tuple[int, int]]] = []
    for r in range(num_seqs):
        pairs = [] if mm_prefix_range is None else mm_prefix_range.get(r, [])
        rows.append([(start, end) for start, end in pairs if start < end])
    most = max((len(pairs) for pairs in rows), default=0)
    if not most:
        return None
    padded = [[*pairs, *[(0, 0)] * (most - len(pairs))] for pairs in rows]
    return torch.tensor(padded, dtype=torch.int32, device=device)
