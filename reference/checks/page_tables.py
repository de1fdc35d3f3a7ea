"""Checks of page tables (SPEC.md section 15). No device tensor is read."""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from .common import check_device, check_int, check_length, check_offsets, check_tensor
from .vectors import check_apart, check_range_of, check_vectors, refuse


def check_kv_indices(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    page_kernel_lens: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_start_idx: torch.Tensor | None,
    kv_indices: torch.Tensor,
    entry_page_size: int,
) -> None:
    """Require valid arguments of `create_flashinfer_kv_indices`."""
    operation = "create_flashinfer_kv_indices"
    check_int(operation, "entry_page_size", entry_page_size, 1)
    table = check_tensor(operation, "req_to_token", req_to_token, 2)
    vectors = {"req_pool_indices": req_pool_indices, "page_kernel_lens": page_kernel_lens}
    if kv_start_idx is not None:
        vectors["kv_start_idx"] = kv_start_idx
    rows, device = check_vectors(operation, **vectors)
    offsets = _offsets(operation, "kv_indptr", kv_indptr)
    check_length(operation, "kv_indptr", offsets, rows + 1)
    indices = check_tensor(operation, "kv_indices", kv_indices, 1)
    for field, tensor in (("req_to_token", table), ("kv_indptr", offsets), ("kv_indices", indices)):
        check_device(operation, field, tensor, device)
    check_apart(operation, "kv_indices", indices, req_to_token=table, kv_indptr=offsets, **vectors)
    if device.type == "cpu":
        capacity = table.shape[1] * entry_page_size
        check_range_of(operation, "req_pool_indices", req_pool_indices, 0, table.shape[0])
        _check_lengths(page_kernel_lens, offsets, kv_start_idx, capacity)
        if indices.shape[0] < int(offsets[-1]):
            expected = f"at least {int(offsets[-1])}"
            raise MetadataError(operation, "kv_indices", f"of length {indices.shape[0]}", expected)


def _check_lengths(
    lengths: torch.Tensor, offsets: torch.Tensor, starts: torch.Tensor | None, capacity: int
) -> None:
    """Require lengths that the offsets sum up, of positions inside a row's `capacity` tokens."""
    operation = "create_flashinfer_kv_indices"
    check_range_of(operation, "page_kernel_lens", lengths, 0)
    check_offsets(operation, "kv_indptr", offsets)
    expected = "sums of page_kernel_lens"
    refuse(operation, "kv_indptr", offsets[1:], offsets.diff() != lengths, expected)
    end = lengths.long()
    if starts is not None:
        check_range_of(operation, "kv_start_idx", starts, 0)
        end = end + starts
    expected = f"at most {capacity} positions of a row, its first ones included"
    refuse(operation, "page_kernel_lens", lengths, end > capacity, expected)


def _offsets(operation: str, field: str, value: object) -> torch.Tensor:
    """Require a 1-D integer tensor of at least one offset."""
    offsets = check_tensor(operation, field, value, 1)
    if not offsets.shape[0]:
        raise MetadataError(operation, field, "empty", "at least one offset")
    return offsets
