"""Checks of the functions that turn a batch into a drafter's (SPEC.md section 14).

CPU mirrors are read, device tensors are not, so no check synchronises.
"""

from __future__ import annotations

from typing import Any

import torch

from ..interface.errors import MetadataError
from ..interface.metadata import BatchFields
from .common import (
    check_common_metadata,
    check_device,
    check_int,
    check_length,
    check_list,
    check_queries,
    check_rows,
    check_sequences,
    check_tensor,
)

SEQUENCE_LENGTHS = ("seq_lens", "seq_lens_cpu", "seq_lens_cpu_upper_bound")
"""Fields with each sequence's length, as far as the class has them."""
_RANK_SHARES = ("dcp_local_seq_lens", "dcp_local_seq_lens_cpu_upper_bound")
"""Fields with a rank's share of each sequence, as far as the class has them."""


def check_batch(operation: str, metadata: BatchFields) -> None:
    """Require a consistent batch."""
    check_common_metadata(operation, metadata)
    check_queries(operation, metadata)
    check_sequences(operation, metadata)
    check_rows(operation, metadata)


def check_prepare_inputs(
    metadata: BatchFields, sampled_token_ids: list[list[int]], num_draft_tokens: list[int]
) -> None:
    """Require valid arguments of `prepare_inputs`."""
    operation = "prepare_inputs"
    check_batch(operation, metadata)
    rows = metadata.num_reqs
    for field, values in (
        ("sampled_token_ids", sampled_token_ids),
        ("num_draft_tokens", num_draft_tokens),
    ):
        check_list(operation, field, values)
        if len(values) != rows:
            raise MetadataError(operation, field, f"of length {len(values)}", f"length {rows}")
    for row, drafts in enumerate(num_draft_tokens):
        check_int(operation, f"num_draft_tokens[{row}]", drafts, 0)
        sampled = sampled_token_ids[row]
        check_list(operation, f"sampled_token_ids[{row}]", sampled)
        if len(sampled) > drafts + 1:
            expected = f"at most {drafts} drafts and one more"
            given = f"{len(sampled)} tokens"
            raise MetadataError(operation, f"sampled_token_ids[{row}]", given, expected)
    _check_drafts(operation, "num_draft_tokens", metadata, num_draft_tokens)
    check_shares(
        operation,
        metadata,
        any(
            drafts and len(sampled) <= drafts
            for drafts, sampled in zip(num_draft_tokens, sampled_token_ids, strict=True)
        ),
    )


def check_prepare_inputs_padded(
    metadata: BatchFields, spec_decode_metadata: Any, valid_sampled_tokens_count: torch.Tensor
) -> None:
    """Require valid arguments of `prepare_inputs_padded`."""
    operation = "prepare_inputs_padded"
    check_batch(operation, metadata)
    if not hasattr(spec_decode_metadata, "cu_num_draft_tokens"):
        given = type(spec_decode_metadata).__name__
        expected = "an object with cu_num_draft_tokens"
        raise TypeError(f"{operation}: spec_decode_metadata is {given}, expected {expected}")
    ends, counts = spec_decode_metadata.cu_num_draft_tokens, valid_sampled_tokens_count
    for field, values in (("cu_num_draft_tokens", ends), ("valid_sampled_tokens_count", counts)):
        check_tensor(operation, field, values, 1)
        check_length(operation, field, values, metadata.num_reqs)
        check_device(operation, field, values, metadata.query_start_loc.device)
    if not ends.is_cpu:
        return
    drafts, before = [], 0
    for row, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        if end < before:
            expected = f"at least {before}, the sum before"
            raise MetadataError(operation, f"cu_num_draft_tokens[{row}]", end, expected)
        drafts.append(end - before)
        before = end
        if not 0 <= count <= drafts[-1] + 1:
            expected = f"0 to {drafts[-1] + 1} for {drafts[-1]} drafts"
            raise MetadataError(operation, f"valid_sampled_tokens_count[{row}]", count, expected)
    _check_drafts(operation, "cu_num_draft_tokens", metadata, drafts)


def check_extend(
    metadata: BatchFields, more: int, arange: torch.Tensor, new_slot_mapping: torch.Tensor
) -> None:
    """Require valid arguments of `extend_all_queries_by_N`."""
    operation = "extend_all_queries_by_N"
    check_batch(operation, metadata)
    check_int(operation, "N", more, 0)
    device, rows = metadata.query_start_loc.device, metadata.num_reqs
    check_tensor(operation, "arange", arange, 1)
    check_device(operation, "arange", arange, device)
    if arange.shape[0] < rows + 1:
        raise MetadataError(operation, "arange", f"of length {arange.shape[0]}", f"{rows + 1}")
    check_tensor(operation, "new_slot_mapping", new_slot_mapping, 1)
    check_device(operation, "new_slot_mapping", new_slot_mapping, device)
    if new_slot_mapping.dtype is not torch.int64:
        given = f"of dtype {new_slot_mapping.dtype}"
        raise MetadataError(operation, "new_slot_mapping", given, "int64")
    tokens = metadata.num_actual_tokens + rows * more
    if new_slot_mapping.shape[0] < tokens:
        given = f"of length {new_slot_mapping.shape[0]}"
        raise MetadataError(operation, "new_slot_mapping", given, f"at least {tokens}")
    check_shares(operation, metadata, bool(more and rows))
    if arange.is_cpu and arange[: rows + 1].tolist() != list(range(rows + 1)):
        raise MetadataError(operation, "arange", "other numbers", f"0 to {rows} in order")


def _check_drafts(
    operation: str, field: str, metadata: BatchFields, num_draft_tokens: list[int]
) -> None:
    """Require a query of all drafts and the token before them, by the CPU mirror."""
    query_lens = metadata.query_start_loc_cpu.diff().tolist()
    for row, (drafts, query_len) in enumerate(zip(num_draft_tokens, query_lens, strict=True)):
        if drafts and drafts + 1 > query_len:
            given, expected = f"{drafts} drafts", f"at most {query_len - 1} in {query_len} queries"
            raise MetadataError(operation, f"{field}[{row}]", given, expected)


def check_shares(operation: str, metadata: BatchFields, changed: bool) -> None:
    """Require no rank shares in a batch whose lengths change: they cannot be derived."""
    for field in _RANK_SHARES:
        if changed and getattr(metadata, field, None) is not None:
            expected = "None, or no sequence of another length"
            raise MetadataError(operation, field, "set", expected)
