"""Whether the tensors of a batch fit together; the shared check says which one does not."""

from __future__ import annotations

from typing import Any

import torch

from reference.interface import CommonAttentionMetadata

_INT32, _INT64, _TENSOR = torch.int32, torch.int64, torch.Tensor


def shapes_fit(md: CommonAttentionMetadata) -> bool:
    """True if `check_common_metadata` would certainly pass, for a third of what that costs.

    Only looks at what Python can read off a tensor: no value is read and nothing goes
    through PyTorch's dispatcher. Tensors on a device compare devices, which costs more.
    """
    if not isinstance(md, CommonAttentionMetadata):
        return False
    rows, tokens = md.num_reqs, md.num_actual_tokens
    longest_query, longest = md.max_query_len, md.max_seq_len
    if not type(rows) is type(tokens) is type(longest_query) is type(longest) is int:
        return False
    if rows < 0 or tokens < 0 or longest_query < 0 or longest < 0 or type(md.causal) is not bool:
        return False
    offsets, lengths, computed = md.query_start_loc_cpu, md.seq_lens_cpu, md.num_computed_tokens_cpu
    table, slots = md.block_table_tensor, md.slot_mapping
    starts, per_request = (rows + 1,), (rows,)
    return (
        _integers(offsets, starts)
        and _integers(lengths, per_request)
        and _integers(computed, per_request)
        and offsets.is_cpu
        and lengths.is_cpu
        and computed.is_cpu
        and _integers(md.query_start_loc, starts)
        and _integers(md.seq_lens, per_request)
        and type(table) is type(slots) is _TENSOR
        and (table.dtype is _INT32 or table.dtype is _INT64)
        and table.ndim == 2
        and table.shape[0] == rows
        and slots.dtype is _INT64
        and slots.ndim == 1
        and slots.shape[0] >= tokens
        and _together(md.query_start_loc, md.seq_lens, table, slots)
    )


def _integers(tensor: Any, shape: tuple[int]) -> bool:
    if type(tensor) is not _TENSOR or tensor.shape != shape:
        return False
    return tensor.dtype is _INT32 or tensor.dtype is _INT64


def _together(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> bool:
    """Whether all lie on one device."""
    if a.is_cpu:
        return b.is_cpu and c.is_cpu and d.is_cpu
    device = a.device
    return b.device == c.device == d.device == device
