"""Checks of the ranges of prompt positions that attend to each other (SPEC.md section 11)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from ..interface.errors import MetadataError
from .common import check_cpu, check_int, check_length, check_offsets, check_tensor

Ranges = dict[int, list[tuple[int, int]]]
"""Inclusive ranges (start, end) of prompt positions, by row."""


def check_ranges(operation: str, ranges: Ranges | None, num_rows: int) -> None:
    """Require ranges of existing rows, which do not overlap within a row.

    Ranges with start >= end are padding, and may be anything.
    """
    if ranges is None:
        return
    if not isinstance(ranges, dict):
        given = type(ranges).__name__
        raise TypeError(f"{operation}: mm_prefix_range is {given}, expected dict or None")
    for row, pairs in ranges.items():
        check_int(operation, "mm_prefix_range", row, 0)
        if row >= num_rows:
            expected = f"rows below {num_rows}"
            raise MetadataError(operation, "mm_prefix_range", f"of row {row}", expected)
        _check_pairs(operation, f"mm_prefix_range[{row}]", pairs)


def _check_pairs(operation: str, field: str, pairs: list[tuple[int, int]]) -> None:
    if not isinstance(pairs, list | tuple):
        raise TypeError(f"{operation}: {field} is {type(pairs).__name__}, expected list")
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError(f"{operation}: {field} holds {pair!r}, expected pairs of int")
        if not type(pair[0]) is type(pair[1]) is int:
            raise TypeError(f"{operation}: {field} holds {pair!r}, expected pairs of int")
        if pair[0] < min(0, pair[1]):
            expected = "positions of at least 0"
            raise MetadataError(operation, field, f"{pair[0]}..{pair[1]}", expected)
    real = sorted((start, end) for start, end in pairs if start < end)
    for (start, end), (next_start, next_end) in pairwise(real):
        if next_start <= end:
            given = f"{start}..{end} and {next_start}..{next_end}"
            raise MetadataError(operation, field, given, "ranges that do not overlap")


def check_query_ranges(
    out: np.ndarray,
    ranges: Ranges | None,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Require valid arguments of `fill_mm_prefix_query_ranges`."""
    operation = "fill_mm_prefix_query_ranges"
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{operation}: out is {type(out).__name__}, expected numpy.ndarray")
    if out.dtype != np.int32 or out.ndim != 2 or out.shape[1] != 2 or not out.flags.writeable:
        writeable = "" if out.flags.writeable else "read-only "
        given = f"{writeable}{out.dtype} of shape {out.shape}"
        raise MetadataError(operation, "out", given, "writable int32 of shape (tokens, 2)")
    check_tensor(operation, "query_start_loc_cpu", query_start_loc, 1)
    check_cpu(operation, "query_start_loc_cpu", query_start_loc)
    check_offsets(operation, "query_start_loc_cpu", query_start_loc)
    rows, tokens = query_start_loc.shape[0] - 1, int(query_start_loc[-1])
    check_tensor(operation, "seq_lens_cpu", seq_lens, 1)
    check_length(operation, "seq_lens_cpu", seq_lens, rows)
    check_cpu(operation, "seq_lens_cpu", seq_lens)
    for row, shorter in enumerate((seq_lens < query_start_loc.diff()).tolist()):
        if shorter:
            expected = "at least the query length"
            raise MetadataError(operation, f"seq_lens_cpu[{row}]", int(seq_lens[row]), expected)
    if out.shape[0] < tokens:
        raise MetadataError(operation, "out", f"of length {out.shape[0]}", f"at least {tokens}")
    check_ranges(operation, ranges, rows)
