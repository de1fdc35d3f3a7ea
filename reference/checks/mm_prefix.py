"""Checks of the ranges of prompt positions that attend to each other (SPEC.md section 11)."""

from __future__ import annotations

from itertools import pairwise

from ..interface.errors import MetadataError
from .common import check_int

Ranges = dict[int, list[tuple[int, int]]]
"""Inclusive ranges (start, end) of prompt positions, by row."""


def check_ranges(operation: str, ranges: Ranges | None, num_rows: int) -> None:
    """Require ranges of existing rows, which do not overlap within a row.

    Ranges with start >= end are padding, and may be anything.
    """
    if ranges is None:
        return
    if not isinstance(ranges, dict):
        got = type(ranges).__name__
        raise TypeError(f"{operation}: mm_prefix_range is {got}, expected dict or None")
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
            got = f"{start}..{end} and {next_start}..{next_end}"
            raise MetadataError(operation, field, got, "ranges that do not overlap")
