"""Tolerance of float results against float64 (SPEC.md section 8).

It applies to the fields in `Operation.tolerant` only. The reference's values are float64,
the candidate's have the requested dtype.
"""

from __future__ import annotations

from typing import Any, Final

import torch

TOLERANCES: Final = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Largest relative Frobenius error by dtype."""
_ELEMENT: Final = 8
"""Largest error of one element, in units of the tolerance times its row's norm."""

_NARROW: Final = 8
"""Elements of a row below which its norm counts as at least an eighth of a usual row's."""


def close(expected: torch.Tensor, got: object, tolerance: float | None = None) -> bool:
    """True if `got` is finite, within the tolerance, and has the shape and device of `expected`.

    A row is the last dimension: one head of one token. `tolerance` is that of the dtype, one of
    `TOLERANCES`, unless it is given.
    """
    if not isinstance(got, torch.Tensor) or not got.dtype.is_floating_point:
        return False
    if tolerance is None:
        tolerance = TOLERANCES.get(got.dtype)
    if tolerance is None:
        return False
    if got.shape != expected.shape or got.device != expected.device:
        return False
    if not expected.numel():
        return True
    right, ours = expected.double(), got.double()
    error = ours - right
    if not bool(torch.isfinite(ours).all()):
        return False
    rounding = rounding_near_0(got.dtype)
    if float(error.norm()) > tolerance * float(right.norm()) + rounding * right.numel() ** 0.5:
        return False
    return bool((error.abs() <= _ELEMENT * tolerance * norms_of_rows(right) + rounding).all())


def norms_of_rows(right: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row, the unit of the errors of its elements."""
    rows = right if right.ndim else right[None]
    norms: torch.Tensor = rows.norm(dim=-1, keepdim=True)
    if rows.shape[-1] < _NARROW:
        # The values of a sum may cancel in all elements of a narrow row, and their rounding not.
        norms = norms.clamp(min=float(norms.norm()) / norms.numel() ** 0.5 / _ELEMENT)
    return norms


def beyond(
    expected: torch.Tensor, got: torch.Tensor, tolerance: float | None = None
) -> list[list[int]]:
    """Return the indices of elements whose error alone is too large.

    Where each is small enough and all together are not, those with an error above the tolerance's
    share of the row. `got` has the shape and device of `expected` and is not close to it.
    """
    if tolerance is None:
        tolerance = TOLERANCES.get(got.dtype, 0.0)
    else:
        expected, got = without_infinities(expected, got)
    right, ours = expected.double(), got.double()
    error = (ours - right).abs() - rounding_near_0(got.dtype)
    norms = norms_of_rows(right)
    for allowed in (_ELEMENT * tolerance * norms, tolerance * norms):
        wrong = ~(error <= allowed)  # NaN too
        if wrong.any():
            break
    indices: list[list[int]] = torch.argwhere(wrong).tolist()
    return indices


def without_infinities(expected: torch.Tensor, got: Any) -> tuple[torch.Tensor, Any]:
    """Return both with 0 where `expected` is NaN or both have the same infinity.

    What cannot be a number has no right value, and an infinity, such as the logarithm of an empty
    sum, is compared exactly.
    """
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return expected, got
    left_out = expected.isnan() | (expected.isinf() & (got == expected))
    return expected.masked_fill(left_out, 0), got.masked_fill(left_out, 0)


def rounding_near_0(dtype: torch.dtype) -> float:
    """Return the largest rounding of numbers that have no relative precision in the dtype."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2


def farthest(expected: torch.Tensor, got: torch.Tensor) -> tuple[int, ...] | None:
    """Return the index of the largest error relative to its row's norm.

    An element that is not finite comes first. None for empty or differently shaped tensors.
    """
    if got.shape != expected.shape or not expected.numel():
        return None
    right, ours = expected.double().cpu(), got.double().cpu()
    wrong = torch.argwhere(~torch.isfinite(ours))
    if len(wrong):
        return tuple(wrong[0].tolist())
    row = right.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    off = ((ours - right).abs() / row).flatten()
    place = torch.unravel_index(off.argmax(), right.shape)
    return tuple(int(index) for index in place)
