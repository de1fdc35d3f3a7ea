"""Describe 1-D tensors to loops that take addresses and strides."""

from __future__ import annotations

import torch


def vector(tensor: torch.Tensor) -> tuple[int, int, bool]:
    """Return address, stride in elements, and whether it is int64 (else int32)."""
    return tensor.data_ptr(), tensor.stride(0), tensor.dtype is torch.int64


def optional_vector(tensor: torch.Tensor | None) -> tuple[bool, int, int, bool]:
    """Return whether there is a tensor, and its address, stride and dtype as `vector`."""
    return (False, 0, 0, False) if tensor is None else (True, *vector(tensor))
