"""Checks of the functions that turn a batch into a drafter's (SPEC.md section 14).

CPU mirrors are read, device tensors are not, so no check synchronises.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from ..interface.errors import MetadataError
from ..interface.metadata import BatchFields
from .common import (
    check_device,
    check_int,
    check_length,
    check_list,
    check_tensor,
)

SEQUENCE_LENGTHS = ("seq_lens", "seq_lens_cpu", "seq_lens_cpu_upper_bound")
"""Fields with each sequence's length, as far as the class has them."""
_RANK_SHARES = ("dcp_local_seq_lens", "dcp_local_seq_lens_cpu_upper_bound")
"""Fields with a rank's share of each sequence, as far as the class has them."""


def check_lists(
    operation: str,
    common_attn_metadata: BatchFields,
    sampled_token_ids: list[list[int]],
    num_draft_tokens: list[int],
) -> None:
    """Require drafts and sampled tokens of each row of the batch, not more than it has."""
    metadata, rows = common_attn_metadata, common_attn_metadata.num_reqs
    for field, values in (
        ("sampled_token_ids", sampled_token_ids),
        ("num_draft_tokens", num_draft_tokens),
    ):
        if len(values) != rows:
            raise MetadataError(operation, field, f"of length {len(values)}", f"length {rows}")
    for row, drafts in enumerate(num_draft_tokens):
        check_int(operation, f"num_draft_tokens[{row}]", drafts, 0)
        sampled = sampled_token_ids[row]
        check_list(operation, f"sampled_token_ids[{row}]", sampled)
        if len(sampled) > drafts + 1:
            expected = f"at most {drafts} drafts and one more"
            got = f"{len(sampled)} tokens"
            raise MetadataError(operation, f"sampled_token_ids[{row}]", got, expected)
    check_drafts(operation, "num_draft_tokens", metadata, num_draft_tokens)
    check_shares(
        operation,
        metadata,
        any(
            drafts and len(sampled) <= drafts
            for drafts, sampled in zip(num_draft_tokens, sampled_token_ids, strict=True)
        ),
    )


def check_sums(
    operation: str, common_attn_metadata: BatchFields, spec_decode_metadata: Any
) -> None:
    """Require sums of drafts of each row, on the CPU not more than it has."""
    if not hasattr(spec_decode_metadata, "cu_num_draft_tokens"):
        kind = type(spec_decode_metadata).__name__
        expected = "an object with cu_num_draft_tokens"
        raise TypeError(f"{operation}: spec_decode_metadata is {kind}, expected {expected}")
    field, ends = "cu_num_draft_tokens", spec_decode_metadata.cu_num_draft_tokens
    check_length(
        operation, field, check_tensor(operation, field, ends, 1), common_attn_metadata.num_reqs
    )
    check_device(operation, field, ends, common_attn_metadata.query_start_loc.device)
    if not ends.is_cpu:
        return
    for row, (before, end) in enumerate(pairwise([0, *ends.tolist()])):
        if end < before:
            expected = f"at least {before}, the sum before"
            raise MetadataError(operation, f"{field}[{row}]", end, expected)
    check_drafts(operation, field, common_attn_metadata, _drafts(spec_decode_metadata))


def check_counts(
    operation: str, spec_decode_metadata: Any, valid_sampled_tokens_count: torch.Tensor
) -> None:
    """Require counts of at most the drafts and one more."""
    if not spec_decode_metadata.cu_num_draft_tokens.is_cpu:
        return
    counts = valid_sampled_tokens_count.tolist()
    for row, (drafts, count) in enumerate(zip(_drafts(spec_decode_metadata), counts, strict=True)):
        if count > drafts + 1:
            expected = f"0 to {drafts + 1} for {drafts} drafts"
            raise MetadataError(operation, f"valid_sampled_tokens_count[{row}]", count, expected)


def _drafts(spec_decode_metadata: Any) -> list[int]:
    ends = spec_decode_metadata.cu_num_draft_tokens.tolist()
    return [end - before for before, end in pairwise([0, *ends])]


def check_drafts(
    operation: str, field: str, metadata: BatchFields, num_draft_tokens: list[int]
) -> None:
    """Require a query of all drafts and the token before them, by the CPU mirror."""
    query_lens = metadata.query_start_loc_cpu.diff().tolist()
    for row, (drafts, query_len) in enumerate(zip(num_draft_tokens, query_lens, strict=True)):
        if drafts and drafts + 1 > query_len:
            got, expected = f"{drafts} drafts", f"at most {query_len - 1} in {query_len} queries"
            raise MetadataError(operation, f"{field}[{row}]", got, expected)


def check_shares(operation: str, metadata: BatchFields, changed: bool) -> None:
    """Require no rank shares in a batch whose lengths change: they cannot be derived."""
    for field in _RANK_SHARES:
        if changed and getattr(metadata, field, None) is not None:
            expected = "None, or no sequence of another length"
            raise MetadataError(operation, field, "set", expected)
