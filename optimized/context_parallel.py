"""Divide sequences between the ranks of context parallelism (SPEC.md section 10)."""

from __future__ import annotations

from itertools import pairwise

import torch

from attnproof.reference.checks.context_parallel import check_prefill_chunks

from .checking import check_call, checks
from .dispatch import on_device
from .host import context_parallel as loops
from .host.arrays import dense

__all__ = [
    "get_dcp_local_seq_lens",
    "prepare_dcp_local_seq_lens",
    "split_prefill_chunks",
]

_checked = checks.follow(globals())
_MOST_INT32 = 2**31 - 1


def get_dcp_local_seq_lens(
    seq_lens: torch.Tensor,
    dcp_size: int = 1,
    dcp_rank: int | torch.Tensor | None = None,
    cp_kv_cache_interleave_size: int = 1,
) -> torch.Tensor:
    """Return the number of each sequence's cache positions that a rank owns, int32.

    Result, shapes and errors as in `reference`. No sync. SPEC.md section 10.
    """
    if _checked:
        check_call("get_dcp_local_seq_lens", **locals())
    interleave = cp_kv_cache_interleave_size
    if dcp_rank is None:
        lengths = seq_lens[:, None]
        ranks: int | torch.Tensor = torch.arange(dcp_size, device=seq_lens.device)
    else:
        lengths, ranks = seq_lens, dcp_rank
    span = dcp_size * interleave
    if span > _MOST_INT32:  # torch would compute with the span modulo 2**32
        lengths = lengths.to(torch.int64)
        ranks = ranks.to(torch.int64) if isinstance(ranks, torch.Tensor) else ranks
    turns = torch.div(lengths, span, rounding_mode="floor")
    rest = lengths - turns * span
    in_last_turn = (rest - ranks * interleave).clamp_(0, interleave)
    return (turns * interleave + in_last_turn).to(torch.int32)


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

    Result, shapes and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 10.
    """
    if _checked:
        check_call("prepare_dcp_local_seq_lens", **locals())
    out = dcp_local_seq_lens
    if on_device(out):
        from .kernels.local_lengths import write_local_lengths

        write_local_lengths(seq_lens, num_reqs, (dcp_size, dcp_rank, cp_interleave), out)
        return out[:num_reqs_padded]
    lengths = seq_lens if seq_lens.is_contiguous() else seq_lens[:num_reqs].contiguous()
    shares = (
        out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    )
    wide, length = lengths.dtype is torch.int64, out.shape[0]
    ranks = dcp_size, dcp_rank, cp_interleave
    loops.fill_shares(lengths.data_ptr(), wide, num_reqs, *ranks, shares.data_ptr(), length)
    if shares is not out:
        out.copy_(shares)
    return out[:num_reqs_padded]


def split_prefill_chunks(
    seq_lens_cpu: torch.Tensor, workspace_size: int, request_offset: int = 0
) -> list[tuple[int, int]]:
    """Return runs (start, end) of requests whose keys fit into a workspace together.

    Result and errors as in `reference`. SPEC.md section 10.
    """
    if _checked:
        check_prefill_chunks(seq_lens_cpu, workspace_size, request_offset)
    lengths = dense(seq_lens_cpu, seq_lens_cpu.dtype)
    num_reqs, wide = lengths.shape[0], lengths.dtype is torch.int64
    ends = torch.empty(num_reqs, dtype=torch.int64)
    num_runs = loops.find_runs(lengths.data_ptr(), wide, num_reqs, workspace_size, ends.data_ptr())
    bounds = [request_offset, *(request_offset + end for end in ends[:num_runs].tolist())]
    return list(pairwise(bounds))
