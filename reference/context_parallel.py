"""Divide sequences between the ranks of context parallelism (SPEC.md section 10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from .checks.common import check_device, check_int
from .checks.context_parallel import check_prefill_chunks
from .definition.definition import operation
from .definition.roles import ANY_SHAPE, Array, Int, Object, of_shapes
from .interface.errors import MetadataError

__all__ = [
    "get_dcp_local_seq_lens",
    "prepare_dcp_local_seq_lens",
    "split_prefill_chunks",
]


Condition = Iterator[tuple[str, bool, str]]
AtLeast1 = Annotated[int, Int(least=1)]


@of_shapes
def _is_rank(
    operation: str, seq_lens: torch.Tensor, dcp_size: int, dcp_rank: int | torch.Tensor | None
) -> None:
    """Require a number below the ranks, or an int32 tensor of one beside the lengths."""
    rank = dcp_rank
    if isinstance(rank, torch.Tensor):
        check_device(operation, "dcp_rank", rank, seq_lens.device)
        if rank.dtype is not torch.int32 or rank.numel() != 1:
            got = f"{rank.dtype} of shape {tuple(rank.shape)}"
            raise MetadataError(operation, "dcp_rank", got, "int32 with one element")
        rank = int(rank) if rank.is_cpu else None
    if rank is not None:
        check_int(operation, "dcp_rank", rank, 0)
        if rank >= dcp_size:
            raise MetadataError(operation, "dcp_rank", rank, f"at most {dcp_size - 1}")


@operation(requires=(_is_rank,))
def get_dcp_local_seq_lens(
    seq_lens: Annotated[torch.Tensor, Array(shape=("R",), least=0)],
    dcp_size: AtLeast1 = 1,
    dcp_rank: Annotated[int | torch.Tensor, Object()] | None = None,
    cp_kv_cache_interleave_size: AtLeast1 = 1,
) -> Annotated[torch.Tensor, Array(shape=ANY_SHAPE, dtype=torch.int32)]:
    """Return the number of each sequence's cache positions that a rank owns, int32.

    `seq_lens` (R,) int32 or int64, in tokens. Ranks own `cp_kv_cache_interleave_size`
    positions in turn. The result is (R,) for `dcp_rank`, an int or an int32 tensor of one
    element, and (R, dcp_size) without it. Raise MetadataError for values out of range.
    SPEC.md section 10.
    """
    interleave = cp_kv_cache_interleave_size
    ranks = range(dcp_size) if dcp_rank is None else [int(dcp_rank)]
    owned = [
        _owned(length, dcp_size, rank, interleave) for length in seq_lens.tolist() for rank in ranks
    ]
    shape = (len(seq_lens), dcp_size) if dcp_rank is None else (len(seq_lens),)
    return torch.tensor(owned, dtype=torch.int32, device=seq_lens.device).reshape(shape)


@of_shapes
def _has_rows(dcp_local_seq_lens: torch.Tensor, num_reqs_padded: int | None) -> Condition:
    rows = num_reqs_padded or 0
    yield "dcp_local_seq_lens", len(dcp_local_seq_lens) < rows, f"at least {rows}"


@operation(requires=(_has_rows,))
def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: Annotated[
        torch.Tensor, Array(shape=("num_reqs",), dtype=torch.int32, written=True, longer=True)
    ],
    seq_lens: Annotated[torch.Tensor, Array(shape=("num_reqs",), least=0, longer=True)],
    num_reqs: int,
    dcp_size: AtLeast1,
    dcp_rank: Annotated[int, Int(below="dcp_size")],
    cp_interleave: AtLeast1,
    *,
    num_reqs_padded: Annotated[int, Int(least="num_reqs")] | None = None,
) -> Annotated[torch.Tensor, Array(shape=("?",), dtype=torch.int32, may_alias=True)]:
    """Write the number of cache positions that a rank owns of each sequence; return a view.

    `dcp_local_seq_lens` is the caller's buffer, int32, in tokens, with at least `num_reqs`
    and `num_reqs_padded` rows. Its first `num_reqs` rows get the share of `seq_lens`
    (at least num_reqs,) int32 or int64 that `dcp_rank` owns, all others 0. The result is
    its first `num_reqs_padded` rows (default: all). Entries of `seq_lens` behind
    `num_reqs` are not read. Raise MetadataError for values out of range, a buffer that is
    too short, and one in the memory of `seq_lens`. SPEC.md section 10.
    """
    lengths = seq_lens[:num_reqs].tolist()
    for row in range(len(dcp_local_seq_lens)):
        share = _owned(lengths[row], dcp_size, dcp_rank, cp_interleave) if row < num_reqs else 0
        dcp_local_seq_lens[row] = share
    return dcp_local_seq_lens[:num_reqs_padded]


def _owned(length: int, size: int, rank: int, interleave: int) -> int:
    """Return the number of positions in [0, length) that a rank owns."""
    turns, rest = divmod(length, size * interleave)
    # The last turn has only `rest` positions, which go to the ranks in order.
    return turns * interleave + min(max(rest - rank * interleave, 0), interleave)


def split_prefill_chunks(
    seq_lens_cpu: torch.Tensor, workspace_size: int, request_offset: int = 0
) -> list[tuple[int, int]]:
    """Return runs (start, end) of requests whose keys fit into a workspace together.

    `seq_lens_cpu` (R,) int32 or int64, CPU, in tokens. Each run takes requests as long as
    their lengths sum to at most `workspace_size` tokens, so every request is in exactly one
    run. `request_offset` is added to all bounds, which are Python ints. Raise MetadataError
    for a length that is negative or above `workspace_size`. SPEC.md section 10.
    """
    check_prefill_chunks(seq_lens_cpu, workspace_size, request_offset)
    runs = []
    start = total = 0
    for row, length in enumerate(seq_lens_cpu.tolist()):
        if total + length > workspace_size:
            runs.append((start + request_offset, row + request_offset))
            start, total = row, 0
        total += length
    if len(seq_lens_cpu):
        runs.append((start + request_offset, len(seq_lens_cpu) + request_offset))
    return runs
