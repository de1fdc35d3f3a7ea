"""Checks of `maybe_create_ubatch_slices` (SPEC.md section 11)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..interface.errors import MetadataError
from .common import check_bool, check_int

_OPERATION = "maybe_create_ubatch_slices"


def check_ubatch_slices(
    should_ubatch: bool,
    num_scheduled_tokens: np.ndarray,
    num_tokens_padded: int,
    num_reqs_padded: int,
    num_ubatches: int,
) -> None:
    """Require integers in range and padded numbers that hold the batch."""
    check_bool(_OPERATION, "should_ubatch", should_ubatch)
    scheduled = num_scheduled_tokens
    if not isinstance(scheduled, np.ndarray):
        given = type(scheduled).__name__
        raise TypeError(f"{_OPERATION}: num_scheduled_tokens is {given}, expected numpy.ndarray")
    if scheduled.ndim != 1 or scheduled.dtype not in (np.int32, np.int64):
        given = f"{scheduled.dtype} of shape {scheduled.shape}"
        raise MetadataError(_OPERATION, "num_scheduled_tokens", given, "1-D int32 or int64")
    if scheduled.size and int(scheduled.min()) < 0:
        given = f"{int(scheduled.min())} at its least"
        raise MetadataError(_OPERATION, "num_scheduled_tokens", given, "no negative number")
    check_int(_OPERATION, "num_tokens_padded", num_tokens_padded, int(scheduled.sum()))
    check_int(_OPERATION, "num_reqs_padded", num_reqs_padded, len(scheduled))
    check_int(_OPERATION, "num_ubatches", num_ubatches, 1)


def check_split_points(
    split_point: list[int] | int | None, num_ubatches: int, num_tokens: int, points: list[int]
) -> None:
    """Require points that rise strictly between 0 and the number of tokens."""
    if isinstance(split_point, list):
        for point in split_point:
            check_int(_OPERATION, "split_point", point, 0)
        if len(split_point) != num_ubatches - 1:
            expected = f"num_ubatches - 1 = {num_ubatches - 1}"
            raise MetadataError(_OPERATION, "split_point", f"{len(split_point)} points", expected)
    for start, end in pairwise([0, *points, num_tokens]):
        if start >= end:
            expected = f"points that rise between 0 and {num_tokens} tokens"
            raise MetadataError(_OPERATION, "split_point", points, expected)


def check_split_point(split_point: list[int] | int | None) -> None:
    """Require an int, a list or None."""
    if split_point is not None and not isinstance(split_point, list):
        check_int(_OPERATION, "split_point", split_point, 0)
