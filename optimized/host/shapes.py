"""Check quickly that the shapes and devices of a batch are consistent; find its dtype.

If they are not, the shared check raises the error.
"""

from __future__ import annotations

import torch

from attnproof.reference.shared import CommonAttentionMetadata

_INT32, _INT64, _TENSOR = torch.int32, torch.int64, torch.Tensor


def lengths_dtype(md: CommonAttentionMetadata) -> torch.dtype:
    """Return int32 if all offsets and lengths of the batch are int32, otherwise int64."""
    first = md.query_start_loc.dtype
    mirrors = first is md.query_start_loc_cpu.dtype is md.seq_lens_cpu.dtype
    others = md.num_computed_tokens_cpu.dtype is md.seq_lens.dtype is _INT32
    return _INT32 if mirrors and others and first is _INT32 else _INT64


def shapes_fit(md: CommonAttentionMetadata) -> bool:
    """True if `check_common_metadata` would certainly pass. No value is read."""
    # Reading about forty attributes takes most of the time of a small batch. Therefore each
    # is read once, and nothing goes through PyTorch's dispatcher.
    if not isinstance(md, CommonAttentionMetadata):
        return False
    rows, tokens = md.num_reqs, md.num_actual_tokens
    longest_query, longest = md.max_query_len, md.max_seq_len
    if not type(rows) is type(tokens) is type(longest_query) is type(longest) is int:
        return False
    if rows < 0 or tokens < 0 or longest_query < 0 or longest < 0 or type(md.causal) is not bool:
        return False
    starts, starts_cpu = md.query_start_loc, md.query_start_loc_cpu
    lengths, lengths_cpu, computed = md.seq_lens, md.seq_lens_cpu, md.num_computed_tokens_cpu
    table, slots = md.block_table_tensor, md.slot_mapping
    if not type(starts) is type(starts_cpu) is type(table) is type(slots) is _TENSOR:
        return False
    if not type(lengths) is type(lengths_cpu) is type(computed) is _TENSOR:
        return False
    offsets, per_request = (rows + 1,), (rows,)
    table_shape, slots_shape = table.shape, slots.shape
    fit = (
        starts.shape == offsets == starts_cpu.shape
        and lengths.shape == per_request == lengths_cpu.shape
        and computed.shape == per_request
        and starts_cpu.is_cpu
        and lengths_cpu.is_cpu
        and computed.is_cpu
        and len(table_shape) == 2
        and table_shape[0] == rows
        and slots.dtype is _INT64
        and len(slots_shape) == 1
        and slots_shape[0] >= tokens
        and (
            (starts.is_cpu and lengths.is_cpu and table.is_cpu and slots.is_cpu)
            or starts.device == lengths.device == table.device == slots.device
        )
    )
    if not fit or (table.dtype is not _INT32 and table.dtype is not _INT64):
        return False
    first = starts.dtype
    if first is starts_cpu.dtype is lengths.dtype is lengths_cpu.dtype is computed.dtype is _INT32:
        return True
    integers = (starts, starts_cpu, lengths, lengths_cpu, computed)
    return all(tensor.dtype is _INT32 or tensor.dtype is _INT64 for tensor in integers)
