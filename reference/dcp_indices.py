"""Positions that one rank of context parallelism owns (SPEC.md section 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from .definition.definition import operation
from .definition.roles import ANY_SHAPE, Array, Int

__all__ = [
    "get_dcp_lens",
    "localize_dcp_indices",
]

AnyShape = Annotated[torch.Tensor, Array(shape=ANY_SHAPE)]


@operation
def get_dcp_lens(
    lens: Annotated[torch.Tensor, Array("numbers", ("L",), least=0)],
    dcp_size: Annotated[int, Int(least=1)],
    dcp_rank: Annotated[int, Int(below="dcp_size")],
    start: Annotated[torch.Tensor, Array("numbers", ("L",), least=0)] | None = None,
    interleave_size: Annotated[int, Int(least=1)] = 1,
) -> Annotated[torch.Tensor, Array("numbers", ("L",), may_alias=True)]:
    """Return the number of positions in [start, start + length) that the rank owns.

    `lens` and `start` (default 0) are (R,) int32 or int64 on one device, in tokens; the result
    has the shape and dtype of `lens`. Ranks own `interleave_size` positions in turn. Raise
    MetadataError for values out of range. SPEC.md section 15.
    """
    lengths = lens.tolist()
    starts = [0] * len(lengths) if start is None else start.tolist()
    owned = []
    for length, first in zip(lengths, starts, strict=True):
        before = _owned_before(first, dcp_size, dcp_rank, interleave_size)
        through = _owned_before(first + length, dcp_size, dcp_rank, interleave_size)
        owned.append(through - before)
    return torch.tensor(owned, dtype=lens.dtype, device=lens.device)


def _owned_before(end: int, dcp_size: int, dcp_rank: int, interleave_size: int) -> int:
    """Return the number of positions in [0, end) that the rank owns."""
    turns, rest = divmod(end, dcp_size * interleave_size)
    # The last turn has only `rest` positions, which go to the ranks in order.
    in_last_turn = min(max(rest - dcp_rank * interleave_size, 0), interleave_size)
    return turns * interleave_size + in_last_turn


def _are_positions(indices: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, str]]:
    yield "indices", indices < -1, "a position, or -1 for none"


@operation(requires=(_are_positions,))
def localize_dcp_indices(
    indices: AnyShape,
    dcp_size: Annotated[int, Int(least=1)],
    dcp_rank: Annotated[int, Int(below="dcp_size")],
    interleave_size: Annotated[int, Int(least=1)] = 1,
) -> AnyShape:
    """Return the rank's own index of each position, -1 for those of other ranks.

    `indices` are positions in the whole sequence or -1, int32 or int64 of any shape; the result
    has their shape and dtype, and -1 where they are -1. Ranks own `interleave_size` positions
    in turn. Raise MetadataError for values out of range. SPEC.md section 15.
    """
    local = []
    for position in indices.flatten().tolist():
        turn, place = divmod(position, interleave_size)
        if position < 0 or turn % dcp_size != dcp_rank:
            local.append(-1)
        else:
            local.append(turn // dcp_size * interleave_size + place)
    local_indices = torch.tensor(local, dtype=indices.dtype, device=indices.device)
    return local_indices.reshape(indices.shape)
