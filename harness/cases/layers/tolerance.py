"""When a float result is right: SPEC.md section 8's tolerance, against float64.

Only fields that an operation names (`Operation.tolerant`) are compared so; the
reference's are float64, the candidate's have the dtype that was asked for.
"""

from __future__ import annotations

from typing import Final

import torch

TOLERANCES: Final = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative Frobenius error that a dtype is allowed."""
_ELEMENT: Final = 8
"""How many times that, of its row's norm, one element may be off."""


def close(expected: torch.Tensor, got: object) -> bool:
    """Whether `got` is a finite tensor of the shape and device of `expected`, and near enough.

    A row is what the last dimension spans: one token's one head.
    """
    if not isinstance(got, torch.Tensor) or got.dtype not in TOLERANCES:
        return False
    if got.shape != expected.shape or got.device != expected.device:
        return False
    if not expected.numel():
        return True
    right, ours = expected.double(), got.double()
    error, tolerance = ours - right, TOLERANCES[got.dtype]
    if not bool(torch.isfinite(ours).all()):
        return False
    if float(error.norm()) > tolerance * float(right.norm()):
        return False
    allowed = _ELEMENT * tolerance * right.norm(dim=-1, keepdim=True)
    return bool((error.abs() <= allowed).all())


def farthest(expected: torch.Tensor, got: torch.Tensor) -> tuple[int, ...] | None:
    """Index of the element that is farthest off for its row; the first that is not finite."""
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
