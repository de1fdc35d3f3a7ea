"""Checks of positions under context parallelism (SPEC.md section 15); no device tensor is read."""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from .common import check_int, check_tensor
from .vectors import refuse


def check_dcp_indices(
    indices: torch.Tensor, dcp_size: int, dcp_rank: int, interleave_size: int
) -> None:
    """Require valid arguments of `localize_dcp_indices`."""
    operation = "localize_dcp_indices"
    _check_ranks(operation, dcp_size, dcp_rank, interleave_size)
    ndim = indices.ndim if isinstance(indices, torch.Tensor) else 1
    given = check_tensor(operation, "indices", indices, ndim)
    if given.is_cpu:
        flat = given.flatten()
        refuse(operation, "indices", flat, flat < -1, "a position, or -1 for none")


def _check_ranks(operation: str, dcp_size: int, dcp_rank: int, interleave_size: int) -> None:
    check_int(operation, "dcp_size", dcp_size, 1)
    check_int(operation, "interleave_size", interleave_size, 1)
    check_int(operation, "dcp_rank", dcp_rank, 0)
    if dcp_rank >= dcp_size:
        raise MetadataError(operation, "dcp_rank", dcp_rank, f"at most {dcp_size - 1}")
