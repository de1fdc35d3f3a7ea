"""Divide sequences between the ranks of context parallelism (SPEC.md section 10)."""

from __future__ import annotations

import torch

from .checks.context_parallel import check_local_buffer, check_local_lengths, check_prefill_chunks

__all__ = [
    "get_dcp_local_seq_lens",
    "prepare_dcp_local_seq_lens",
    "split_prefill_chunks",
]


def get_dcp_local_seq_lens(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | torch.Tensor | None = None,
    cp_kv_cache_interleave_size: int = 1,
) -> torch.Tensor:
    """Return the number of each sequence's cache positions that a rank owns, int32.

    `seq_lens` (R,) int32 or int64, in tokens. Ranks own `cp_kv_cache_interleave_size`
    positions in turn. The result is (R,) for `dcp_rank`, an int or an int32 tensor of one
    element, and (R, dcp_size) without it. Raise MetadataError for values out of range.
    SPEC.md section 10.
    """
    interleave = cp_kv_cache_interleave_size
    check_local_lengths(seq_lens, dcp_size, dcp_rank, interleave)
    ranks = range(dcp_size) if dcp_rank is None else [int(dcp_rank)]
    owned = [
        _owned(length, dcp_size, rank, interleave) for length in seq_lens.tolist() for rank in ranks
    ]
    shape = (len(seq_lens), dcp_size) if dcp_rank is None else (len(seq_lens),)
    return torch.tensor(owned, dtype=torch.int32, device=seq_lens.device).reshape(shape)


def prepare_dcp_local_seq_lens(
    dcp_local_seq_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    dcp_size: int,
    dcp_rank: int,
    cp_interleave: int,
    *,
    num_reqs_padded: int | None = None,
) -> torch.Tensor:
    """Write the number of cache positions that a rank owns of each sequence; return a view.

    `dcp_local_seq_lens` is the caller's buffer, int32, in tokens, with at least `num_reqs`
    and `num_reqs_padded` rows. Its first `num_reqs` rows get the share of `seq_lens`
    (at least num_reqs,) int32 or int64 that `dcp_rank` owns, all others 0. The result is
    its first `num_reqs_padded` rows (default: all). Entries of `seq_lens` behind
    `num_reqs` are not read. Raise MetadataError for values out of range, a buffer that is
    too short, and one in the memory of `seq_lens`. SPEC.md section 10.
    """
    check_local_buffer(
        dcp_local_seq_lens,
        seq_lens,
        num_reqs,
        dcp_size,
        dcp_rank,
        cp_interleave,
        num_reqs_padded,
    )
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
