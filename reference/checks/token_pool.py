"""Checks of the pool of requests' slots (SPEC.md section 15). No device tensor is read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..interface.errors import MetadataError
from .common import check_device, check_list, check_tensor
from .vectors import check_apart, check_range_of, check_vectors, refuse

_MOST_INT32 = 2**31 - 1


def check_token_pool(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    prefix_tensors: Sequence[torch.Tensor],
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    """Require valid arguments of `write_req_to_token_pool`."""
    operation = "write_req_to_token_pool"
    table = check_tensor(operation, "req_to_token", req_to_token, 2)
    vectors = {
        "req_pool_indices": req_pool_indices,
        "pre_lens": pre_lens,
        "seq_lens": seq_lens,
        "extend_lens": extend_lens,
    }
    rows, device = check_vectors(operation, **vectors)
    check_list(operation, "prefix_tensors", prefix_tensors)
    if len(prefix_tensors) != rows:
        given = f"{len(prefix_tensors)} tensors"
        raise MetadataError(operation, "prefix_tensors", given, f"{rows}, one a request")
    slots = [*prefix_tensors, out_cache_loc]
    fields = [*(f"prefix_tensors[{r}]" for r in range(rows)), "out_cache_loc"]
    check_device(operation, "req_to_token", table, device)
    for field, tensor in zip(fields, slots, strict=True):
        if check_tensor(operation, field, tensor, 1).dtype is not torch.int64:
            raise MetadataError(operation, field, f"of dtype {tensor.dtype}", "int64")
        check_device(operation, field, tensor, device)
    read = vectors | dict(zip(fields, slots, strict=True))
    check_apart(operation, "req_to_token", table, **read)
    if table.is_cpu:
        _check_rows(table, req_pool_indices, pre_lens, seq_lens, extend_lens)
        counts = [*pre_lens.tolist(), int((seq_lens.long() - pre_lens).sum())]
        for field, tensor, count in zip(fields, slots, counts, strict=True):
            _check_slots(field, tensor, count, table)


def _check_rows(
    table: torch.Tensor,
    rows: torch.Tensor,
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
) -> None:
    """Require different rows of the table, and lengths that agree and fit into a row."""
    operation = "write_req_to_token_pool"
    check_range_of(operation, "req_pool_indices", rows, 0, table.shape[0])
    ordered = rows.sort().values
    twice = ordered[1:] == ordered[:-1]
    refuse(operation, "req_pool_indices", ordered[1:], twice, "each row once")
    check_range_of(operation, "pre_lens", pre_lens, 0)
    refuse(operation, "seq_lens", seq_lens, seq_lens < pre_lens, "at least the prefix's length")
    check_range_of(operation, "seq_lens", seq_lens, 0, table.shape[1] + 1)
    wrong = extend_lens != seq_lens - pre_lens
    refuse(operation, "extend_lens", extend_lens, wrong, "seq_lens less pre_lens")


def _check_slots(field: str, slots: torch.Tensor, count: int, table: torch.Tensor) -> None:
    """Require `count` slots that the table's dtype can hold."""
    operation = "write_req_to_token_pool"
    if slots.shape[0] != count:
        raise MetadataError(operation, field, f"of length {slots.shape[0]}", f"length {count}")
    if table.dtype is torch.int32 and count and int(slots.max()) > _MOST_INT32:
        given = f"{int(slots.max())} at its most"
        raise MetadataError(operation, field, given, "slots that an int32 table can hold")
