"""Choose the micro-batches (ubatches) of an engine step (SPEC.md section 11)."""

from __future__ import annotations

import numpy as np

from attnproof.reference.interface import UBatchSlice

from .checking import check_call, checks

__all__ = [
    "maybe_create_ubatch_slices",
]

_checked = checks.follow(globals())
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

    Result and errors as in `reference`. One running sum over the requests, and a bisection
    for the bounds of each slice. SPEC.md section 11.
    """
    if _checked:
        check_call("maybe_create_ubatch_slices", **locals())
    if not should_ubatch:
        return None, None
    if isinstance(split_point, list):
        points = split_point
    else:
        step = num_tokens_padded // num_ubatches if split_point is None else split_point
        points = [step * i for i in range(1, num_ubatches)]
    ends = num_scheduled_tokens.cumsum(dtype=np.int64)
    tokens = int(ends[-1]) if len(ends) else 0

    starts, stops = [0, *points], [*points, tokens]
    # The first row that ends behind a token holds it; idle rows before it end at its start.
    firsts = ends.searchsorted(starts, side="right").tolist()
    lasts = ends.searchsorted(stops, side="left").tolist()
    bounds = zip(firsts, lasts, starts, stops, strict=True)
    slices = [UBatchSlice(slice(r0, r1 + 1), slice(t0, t1)) for r0, r1, t0, t1 in bounds]
    rows = slice(firsts[-1], num_reqs_padded)
    return slices, [*slices[:-1], UBatchSlice(rows, slice(starts[-1], num_tokens_padded))]
