"""Choose the micro-batches (ubatches) of an engine step (SPEC.md section 11)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np

from .checks.common import check_int
from .definition.definition import operation
from .definition.roles import Int, Object
from .interface import MetadataError, UBatchSlice

__all__ = [
    "maybe_create_ubatch_slices",
]

_Slices = list[UBatchSlice]


def _holds_batch(
    operation: str,
    num_scheduled_tokens: np.ndarray,
    num_tokens_padded: int,
    num_reqs_padded: int,
) -> None:
    scheduled = num_scheduled_tokens
    if scheduled.ndim != 1 or scheduled.dtype not in (np.int32, np.int64):
        got = f"{scheduled.dtype} of shape {scheduled.shape}"
        raise MetadataError(operation, "num_scheduled_tokens", got, "1-D int32 or int64")
    if scheduled.size and int(scheduled.min()) < 0:
        got = f"{int(scheduled.min())} at its least"
        raise MetadataError(operation, "num_scheduled_tokens", got, "no negative number")
    check_int(operation, "num_tokens_padded", num_tokens_padded, int(scheduled.sum()))
    check_int(operation, "num_reqs_padded", num_reqs_padded, len(scheduled))


def _cuts_tokens(
    operation: str,
    should_ubatch: bool,
    num_scheduled_tokens: np.ndarray,
    num_tokens_padded: int,
    num_ubatches: int,
    split_point: list[int] | int | None,
) -> None:
    if isinstance(split_point, int):
        check_int(operation, "split_point", split_point, 0)
    if not should_ubatch:
        return
    points = _points(num_tokens_padded, num_ubatches, split_point)
    for point in points:
        check_int(operation, "split_point", point, 0)
    if len(points) != num_ubatches - 1:
        expected = f"num_ubatches - 1 = {num_ubatches - 1}"
        raise MetadataError(operation, "split_point", f"{len(points)} points", expected)
    tokens = int(num_scheduled_tokens.sum())
    if any(start >= end for start, end in pairwise([0, *points, tokens])):
        expected = f"points that rise between 0 and {tokens} tokens"
        raise MetadataError(operation, "split_point", points, expected)


def _points(
    num_tokens_padded: int, num_ubatches: int, split_point: list[int] | int | None
) -> list[int]:
    if isinstance(split_point, list):
        return list(split_point)
    step = num_tokens_padded // num_ubatches if split_point is None else split_point
    return [step * i for i in range(1, num_ubatches)]


@operation(requires=(_holds_batch, _cuts_tokens))
def maybe_create_ubatch_slices(
    should_ubatch: bool,
    num_scheduled_tokens: Annotated[np.ndarray, Object()],
    num_tokens_padded: int,
    num_reqs_padded: int,
    num_ubatches: Annotated[int, Int(least=1)],
    split_point: Annotated[list[int] | int, Object()] | None = None,
) -> tuple[Annotated[_Slices, Object()] | None, Annotated[_Slices, Object()] | None]:
    """Return the slices of a step without its padding, and the same slices with it.

    `num_scheduled_tokens` (R,) int32 or int64 are the query tokens of each request. The
    tokens are cut at `split_point * i` for i in [1, num_ubatches) (default:
    `num_tokens_padded // num_ubatches`), or at the points of a list. A slice holds every
    request that has a token in it. In the second list the last slice ends at
    `num_tokens_padded` and `num_reqs_padded`. Both are None if `should_ubatch` is False.
    Bounds are Python ints. Raise MetadataError for points that do not rise strictly between 0
    and the number of tokens, and for padded numbers below the real ones. SPEC.md section 11.
    """
    if not should_ubatch:
        return None, None
    scheduled = num_scheduled_tokens.tolist()
    points = _points(num_tokens_padded, num_ubatches, split_point)

    slices, start = [], 0
    for end in [*points, sum(scheduled)]:
        inside, first_token = [], 0
        for row, tokens in enumerate(scheduled):
            if max(first_token, start) < min(first_token + tokens, end):
                inside.append(row)
            first_token += tokens
        slices.append(UBatchSlice(slice(inside[0], inside[-1] + 1), slice(start, end)))
        start = end
    last = slices[-1]
    rows = slice(last.request_slice.start, num_reqs_padded)
    stretched = UBatchSlice(rows, slice(last.token_slice.start, num_tokens_padded))
    return slices, [*slices[:-1], stretched]
