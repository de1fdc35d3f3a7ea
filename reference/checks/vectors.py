"""Checks of tensors with one entry a request (SPEC.md rule 0.6); no device tensor is read."""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from .slots import overlap


def refuse(
    operation: str, field: str, values: torch.Tensor, wrong: torch.Tensor, expected: str
) -> None:
    """Raise MetadataError for the first of `values` (n,) that is marked in `wrong` (n,), if any."""
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise MetadataError(operation, f"{field}[{i}]", int(values[i]), expected)


def repeated(values: torch.Tensor) -> torch.Tensor:
    """Return (n,) bool, True for each of `values` (n,) that another one is equal to."""
    ordered, index = values.sort()
    same = ordered[1:] == ordered[:-1]
    twice = torch.zeros(len(values), dtype=torch.bool)
    twice[index[1:][same]] = twice[index[:-1][same]] = True
    return twice


def check_apart(operation: str, field: str, written: torch.Tensor, **read: object) -> None:
    """Require that `written` shares no memory with a tensor that is read."""
    for name, tensor in read.items():
        if isinstance(tensor, torch.Tensor) and overlap(tensor, written):
            raise MetadataError(operation, field, f"in the memory of {name}", "memory apart")
