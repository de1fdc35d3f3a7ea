"""The pool of requests' slots, `req_to_token` of SGLang (SPEC.md section 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from .checks.common import check_device, check_tensor
from .checks.vectors import check_apart, repeated
from .definition.definition import operation
from .definition.roles import (
    Array,
    NumTokens,
    Object,
    Positions,
    QueryLens,
    SlotPool,
    TokenStarts,
    of_shapes,
)
from .interface.errors import MetadataError

__all__ = [
    "compute_position",
    "get_last_loc",
    "write_req_to_token_pool",
]


_MOST_INT32 = 2**31 - 1
_WIDE_FIRST = (torch.int64, torch.int32)
"""Dtypes of SGLang's rows and lengths."""


@operation(independent=True)
def get_last_loc(
    req_to_token: SlotPool,
    req_pool_indices_tensor: Annotated[torch.Tensor, Array("pool rows", dtype=_WIDE_FIRST)],
    prefix_lens_tensor: Annotated[
        torch.Tensor, Array("computed lengths", dtype=_WIDE_FIRST, below="C+1")
    ],
) -> Annotated[torch.Tensor, Array("numbers", ("R",))]:
    """Return the slot of the last token of each prefix, -1 for an empty prefix.

    `req_to_token` (P, W) holds the slot of each position of a request; request r has row
    `req_pool_indices_tensor[r]` and a prefix of `prefix_lens_tensor[r]` tokens. All are int32
    or int64 on one device. The result is (R,), int64 if the table or the lengths are. Raise
    MetadataError for rows or positions outside the table. SPEC.md section 15.
    """
    table, rows = req_to_token.tolist(), req_pool_indices_tensor.tolist()
    slots = []
    for r, length in enumerate(prefix_lens_tensor.tolist()):
        slots.append(table[rows[r]][length - 1] if length else -1)
    dtype = torch.promote_types(req_to_token.dtype, prefix_lens_tensor.dtype)
    return torch.tensor(slots, dtype=dtype, device=prefix_lens_tensor.device)


@of_shapes
def _are_prefixes(
    operation: str,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    prefix_tensors: list[torch.Tensor],
) -> None:
    """Require 1-D int64 tensors, one a request, beside the table and in memory apart."""
    rows = req_pool_indices.shape[0]
    if len(prefix_tensors) != rows:
        got = f"{len(prefix_tensors)} tensors"
        raise MetadataError(operation, "prefix_tensors", got, f"{rows}, one a request")
    for r, prefix in enumerate(prefix_tensors):
        field = f"prefix_tensors[{r}]"
        if check_tensor(operation, field, prefix, 1).dtype is not torch.int64:
            raise MetadataError(operation, field, f"of dtype {prefix.dtype}", "int64")
        check_device(operation, field, prefix, req_to_token.device)
        check_apart(operation, "req_to_token", req_to_token, **{field: prefix})


def _lengths_agree(
    req_pool_indices: torch.Tensor,
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
) -> Iterator[tuple[str, torch.Tensor, str]]:
    yield "req_pool_indices", repeated(req_pool_indices), "each row once"
    yield "seq_lens", seq_lens < pre_lens, "at least the prefix's length"
    yield "extend_lens", extend_lens != seq_lens - pre_lens, "seq_lens less pre_lens"


def _slots_fit(
    operation: str,
    req_to_token: torch.Tensor,
    prefix_tensors: list[torch.Tensor],
    pre_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    """Require a slot for each position, which the table's dtype can hold."""
    named = {f"prefix_tensors[{r}]": prefix for r, prefix in enumerate(prefix_tensors)}
    named["out_cache_loc"] = out_cache_loc
    counts = [*pre_lens.tolist(), int(extend_lens.long().sum())]
    for (field, slots), count in zip(named.items(), counts, strict=True):
        if slots.shape[0] != count:
            raise MetadataError(operation, field, f"of length {slots.shape[0]}", f"length {count}")
        if req_to_token.dtype is torch.int32 and count and int(slots.max()) > _MOST_INT32:
            got = f"{int(slots.max())} at its most"
            raise MetadataError(operation, field, got, "slots that an int32 table can hold")


Lengths = Annotated[torch.Tensor, Array(shape=("R",), least=0)]


@operation(requires=(_are_prefixes, _lengths_agree, _slots_fit))
def write_req_to_token_pool(
    req_to_token: Annotated[torch.Tensor, Array(shape=("P", "C"), written=True)],
    req_pool_indices: Annotated[torch.Tensor, Array(shape=("R",), least=0, below="P")],
    prefix_tensors: Annotated[list[torch.Tensor], Object()],
    pre_lens: Lengths,
    seq_lens: Annotated[torch.Tensor, Array(shape=("R",), below="C+1")],
    extend_lens: Annotated[torch.Tensor, Array(shape=("R",))],  # noqa: ARG001, checked by it
    out_cache_loc: Annotated[torch.Tensor, Array(shape=("N",), dtype=torch.int64)],
) -> None:
    """Write the slots of each request's prefix, then of its new tokens, to its row of the pool.

    `req_to_token` (P, W) is int32 or int64. Request r has row `req_pool_indices[r]`, the slots
    `prefix_tensors[r]` (`pre_lens[r]`,) of its prefix, and `extend_lens[r]` = `seq_lens[r]` -
    `pre_lens[r]` of those in `out_cache_loc`, request by request; slots are int64. Entries
    behind a sequence and all other rows keep their values. Raise MetadataError for a row
    outside the pool or given twice, lengths that disagree, slots too large for the table.
    SPEC.md section 15.
    """
    new, first = out_cache_loc.tolist(), 0
    lengths = list(zip(pre_lens.tolist(), seq_lens.tolist(), strict=True))
    for r, row in enumerate(req_pool_indices.tolist()):
        prefix, end = lengths[r]
        slots = [*prefix_tensors[r].tolist(), *new[first : first + end - prefix]]
        first += end - prefix
        req_to_token[row, :end] = torch.tensor(slots, dtype=req_to_token.dtype)


@operation(results=("positions", "extend_start_loc"), independent=True)
def compute_position(
    extend_prefix_lens: Annotated[torch.Tensor, Array("computed lengths", or_empty=True)],
    extend_seq_lens: QueryLens,
    extend_seq_lens_sum: NumTokens,  # noqa: ARG001, checked by its declaration
) -> tuple[Positions, TokenStarts]:
    """Return the position of each new token, and the index of each request's first one.

    Request r has `extend_seq_lens[r]` new tokens behind `extend_prefix_lens[r]` cached ones;
    (R,) int32 or int64 on one device, the prefixes may be empty (0,) if there are none.
    Positions are (`extend_seq_lens_sum`,) int64, indices (R,) int32. Raise MetadataError for
    another sum. SPEC.md section 15.
    """
    lengths, prefixes = extend_seq_lens.tolist(), extend_prefix_lens.tolist()
    positions: list[int] = []
    starts = []
    for r, length in enumerate(lengths):
        prefix = prefixes[r] if prefixes else 0
        starts.append(len(positions))
        positions.extend(range(prefix, prefix + length))
    device = extend_seq_lens.device
    return (
        torch.tensor(positions, dtype=torch.int64, device=device),
        torch.tensor(starts, dtype=torch.int32, device=device),
    )
