"""Choose the micro-batches (ubatches) of an engine step (SPEC.md section 11)."""

from __future__ import annotations

import numpy as np

from .checks.ubatch_slices import check_split_point, check_split_points, check_ubatch_slices
from .interface import UBatchSlice

__all__ = [
    "maybe_create_ubatch_slices",
]

_Slices = list[UBatchSlice]


def maybe_create_ubatch_slices(
    should_ubatch: bool,
    num_scheduled_tokens: np.ndarray,
    num_tokens_padded: int,
    num_reqs_padded: int,
    num_ubatches: int,
    split_point: list[int] | int | None = None,
) -> tuple[_Slices | None, _Slices | None]:
    """Return the slices of a step without its padding, and the same slices with it.

    `num_scheduled_tokens` (R,) int32 or int64 are the query tokens of each request. The
    tokens are cut at `split_point * i` for i in [1, num_ubatches) (default:
    `num_tokens_padded // num_ubatches`), or at the points of a list. A slice holds every
    request that has a token in it. In the second list the last slice ends at
    `num_tokens_padded` and `num_reqs_padded`. Both are None if `should_ubatch` is False.
    Bounds are Python ints. Raise MetadataError for points that do not rise strictly between 0
    and the number of tokens, and for padded numbers below the real ones. SPEC.md section 11.
    """
    check_ubatch_slices(
        should_ubatch, num_scheduled_tokens, num_tokens_padded, num_reqs_padded, num_ubatches
    )
    check_split_point(split_point)
    if not should_ubatch:
        return None, None
    scheduled = num_scheduled_tokens.tolist()
    if isinstance(split_point, list):
        points = list(split_point)
    else:
        step = num_tokens_padded // num_ubatches if split_point is None else split_point
        points = [step * i for i in range(1, num_ubatches)]
    check_split_points(split_point, num_ubatches, sum(scheduled), points)

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
