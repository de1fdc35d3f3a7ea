"""Faults of an output that shares one element with another argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault


def overlaps(
    output: str,
    parameter: str,
    make: Callable[..., torch.Tensor],
    applies: Callable[[Case], bool],
    reads: tuple[str, ...] = (),
) -> dict[str, Fault]:
    """Return two faults: the output ends in the argument's first element, or begins in its last.

    `make` returns a good output from the old one and the values of `reads`.
    """

    def ends(value: torch.Tensor, old: Any, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out = make(old, *others)
        start = _size(out) - min(value.element_size(), out.element_size())
        start -= start % value.element_size()  # keeps `value` aligned
        memory = out.new_zeros(_size(out) + _size(value) + 8, dtype=torch.uint8)
        return _moved(value, memory, start), _moved(out, memory, 0)

    def begins(value: torch.Tensor, old: Any, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out = make(old, *others)
        start = (_size(value) - value.element_size()) % out.element_size()  # keeps `out` aligned
        memory = out.new_zeros(start + _size(value) + _size(out), dtype=torch.uint8)
        end = start + _size(value) - min(value.element_size(), out.element_size())
        end -= end % out.element_size()
        return _moved(value, memory, start), _moved(out, memory, end)

    return {
        f"{output} {verb} in {parameter}": Fault(
            (parameter, output), change, output, applies=applies, reads=reads
        )
        for verb, change in (("ends", ends), ("begins", begins))
    }


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes from the first element to the last."""
    if not tensor.numel():
        return 0
    spans = ((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + sum(spans)) * tensor.element_size()


def _moved(tensor: torch.Tensor, memory: torch.Tensor, start: int) -> torch.Tensor:
    """Return a copy of the tensor at byte `start` of the memory, with the same strides."""
    part = memory[start : start + _size(tensor)].view(tensor.dtype)
    part = part.as_strided(tensor.shape, tensor.stride(), part.storage_offset())
    return part.copy_(tensor)
