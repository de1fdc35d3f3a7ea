"""Positions that one rank of context parallelism owns (SPEC.md section 15)."""

from __future__ import annotations

import torch

from .checking import check_call, checks
from .dispatch import on_device
from .host import dcp_indices as loops
from .host.vectors import optional_vector, vector

__all__ = [
    "get_dcp_lens",
    "localize_dcp_indices",
]

_checked = checks.follow(globals())


def get_dcp_lens(
    lens: torch.Tensor,
    dcp_size: int,
    dcp_rank: int,
    start: torch.Tensor | None = None,
    interleave_size: int = 1,
) -> torch.Tensor:
    """Return the number of positions in [start, start + length) that the rank owns.

    Result, shapes and errors as in `reference`. No sync. SPEC.md section 15.
    """
    if _checked:
        check_call("get_dcp_lens", lens, dcp_size, dcp_rank, start, interleave_size)
    ranks = dcp_size, dcp_rank, interleave_size
    if not on_device(lens):
        out = torch.empty(lens.shape, dtype=lens.dtype)
        vectors = *vector(lens), *optional_vector(start)
        loops.count_owned(lens.shape[0], *vectors, *ranks, out.data_ptr())
        return out
    # The end of a range, and the ranks' turns together, may need 64 bits.
    if start is None:
        return _owned_before(lens.long(), *ranks).to(lens.dtype)
    first = start.long()
    through = _owned_before(first + lens, *ranks)
    return (through - _owned_before(first, *ranks)).to(lens.dtype)


def _owned_before(
    end: torch.Tensor, dcp_size: int, dcp_rank: int, interleave_size: int
) -> torch.Tensor:
    """Return the number of positions in [0, end) that the rank owns, int64."""
    turns = torch.div(end, dcp_size * interleave_size, rounding_mode="floor")
    rest = end - turns * (dcp_size * interleave_size)
    in_last_turn = (rest - dcp_rank * interleave_size).clamp_(0, interleave_size)
    return turns * interleave_size + in_last_turn


def localize_dcp_indices(
    indices: torch.Tensor, dcp_size: int, dcp_rank: int, interleave_size: int = 1
) -> torch.Tensor:
    """Return the rank's own index of each position, -1 for those of other ranks.

    Result, shapes and errors as in `reference`. No sync. SPEC.md section 15.
    """
    if _checked:
        check_call("localize_dcp_indices", **locals())
    if not on_device(indices):
        dense = indices.contiguous()
        out = torch.empty(indices.shape, dtype=indices.dtype)
        wide, ranks = indices.dtype is torch.int64, (dcp_size, dcp_rank, interleave_size)
        loops.localize(dense.numel(), dense.data_ptr(), wide, *ranks, out.data_ptr())
        return out
    numbers = indices.long()  # the interleave size need not fit the indices' dtype
    turn = torch.div(numbers, interleave_size, rounding_mode="floor")
    round_ = torch.div(turn, dcp_size, rounding_mode="floor")
    owned = (numbers >= 0) & (turn - round_ * dcp_size == dcp_rank)
    local = round_ * interleave_size + (numbers - turn * interleave_size)
    return local.masked_fill_(~owned, -1).to(indices.dtype)
