"""Checks of the operations of context parallelism (SPEC.md section 10).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from .common import check_cpu, check_device, check_int, check_tensor
from .slots import overlap


def check_ranks(operation: str, size: int, rank: int, interleave: int, prefix: str) -> None:
    """Require a rank below `size` and an interleave of at least 1.

    The parameters are called `prefix` + "_size" and "_rank", and `cp_interleave`.
    """
    check_int(operation, f"{prefix}_size", size, 1)
    check_int(operation, "cp_interleave", interleave, 1)
    check_rank(operation, f"{prefix}_rank", rank, size)


def check_rank(operation: str, field: str, rank: int, size: int) -> None:
    """Require a rank in [0, size)."""
    check_int(operation, field, rank, 0)
    if rank >= size:
        raise MetadataError(operation, field, rank, f"at most {size - 1}")


def check_local_lengths(
    seq_lens: torch.Tensor, size: int, rank: int | torch.Tensor | None, interleave: int
) -> None:
    """Require valid arguments of `get_dcp_local_seq_lens`."""
    operation = "get_dcp_local_seq_lens"
    check_tensor(operation, "seq_lens", seq_lens, 1)
    check_int(operation, "dcp_size", size, 1)
    check_int(operation, "cp_kv_cache_interleave_size", interleave, 1)
    if isinstance(rank, torch.Tensor):
        check_device(operation, "dcp_rank", rank, seq_lens.device)
        if rank.dtype is not torch.int32 or rank.numel() != 1:
            given = f"{rank.dtype} of shape {tuple(rank.shape)}"
            raise MetadataError(operation, "dcp_rank", given, "int32 with one element")
        rank = int(rank) if rank.is_cpu else None
    if rank is not None:
        check_rank(operation, "dcp_rank", rank, size)
    _check_lengths(operation, seq_lens)


def check_local_buffer(
    out: torch.Tensor,
    seq_lens: torch.Tensor,
    num_reqs: int,
    size: int,
    rank: int,
    interleave: int,
    num_reqs_padded: int | None,
) -> None:
    """Require valid arguments of `prepare_dcp_local_seq_lens`."""
    operation, field = "prepare_dcp_local_seq_lens", "dcp_local_seq_lens"
    check_tensor(operation, field, out, 1)
    if out.dtype is not torch.int32:
        raise MetadataError(operation, field, f"of dtype {out.dtype}", "int32")
    check_tensor(operation, "seq_lens", seq_lens, 1)
    check_device(operation, field, out, seq_lens.device)
    check_ranks(operation, size, rank, interleave, "dcp")
    check_int(operation, "num_reqs", num_reqs, 0)
    rows = num_reqs
    if num_reqs_padded is not None:
        check_int(operation, "num_reqs_padded", num_reqs_padded, num_reqs)
        rows = num_reqs_padded
    if out.shape[0] < rows:
        raise MetadataError(operation, field, f"of length {out.shape[0]}", f"at least {rows}")
    if seq_lens.shape[0] < num_reqs:
        given = f"of length {seq_lens.shape[0]}"
        raise MetadataError(operation, "seq_lens", given, f"at least num_reqs = {num_reqs}")
    if overlap(seq_lens, out):
        raise MetadataError(operation, field, "in the memory of seq_lens", "memory apart")
    _check_lengths(operation, seq_lens[:num_reqs])


def check_prefill_chunks(seq_lens: torch.Tensor, workspace_size: int, request_offset: int) -> None:
    """Require valid arguments of `split_prefill_chunks`."""
    operation = "split_prefill_chunks"
    check_tensor(operation, "seq_lens_cpu", seq_lens, 1)
    check_cpu(operation, "seq_lens_cpu", seq_lens)
    check_int(operation, "workspace_size", workspace_size, 1)
    check_int(operation, "request_offset", request_offset, 0)
    for row, length in enumerate(seq_lens.tolist()):
        if not 0 <= length <= workspace_size:
            expected = f"0 to workspace_size = {workspace_size}"
            raise MetadataError(operation, f"seq_lens_cpu[{row}]", length, expected)


def _check_lengths(operation: str, seq_lens: torch.Tensor) -> None:
    """Require that no length on the CPU is negative."""
    if seq_lens.is_cpu and bool((seq_lens < 0).any()):
        raise MetadataError(operation, "seq_lens", int(seq_lens.min()), "lengths of at least 0")
