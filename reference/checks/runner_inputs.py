"""Conditions on the inputs of model runner V2 (SPEC.md section 13), of tensors on the CPU.

`idx_mapping` has the request slot of each row, -1 for a dummy row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from ..interface.errors import MetadataError
from .common import check_offsets


def require_one_row_a_slot(operation: str, idx_mapping: torch.Tensor) -> None:
    """Require slots that differ: each is written."""
    mapping = idx_mapping.tolist()
    live = [slot for slot in mapping if slot >= 0]
    if len(set(live)) != len(live):
        raise MetadataError(operation, "idx_mapping", str(mapping), "each slot in one row")


def require_computed(
    operation: str, idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor
) -> None:
    """Require numbers of computed tokens of at least 0."""
    _require_lengths(operation, "num_computed_tokens", idx_mapping, num_computed_tokens)


def require_prompts(operation: str, idx_mapping: torch.Tensor, prefill_len: torch.Tensor) -> None:
    """Require lengths of prompts of at least 0."""
    _require_lengths(operation, "prefill_len", idx_mapping, prefill_len)


def _require_lengths(
    operation: str, field: str, idx_mapping: torch.Tensor, lengths: torch.Tensor
) -> None:
    for _, slot in _live(idx_mapping):
        if int(lengths[slot]) < 0:
            got = f"{int(lengths[slot])} in slot {slot}"
            raise MetadataError(operation, field, got, "a length of at least 0")


def require_histories(
    operation: str,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Require histories that hold each prompt, and its query."""
    starts, columns = query_start_loc.tolist(), all_token_ids.shape[1]
    for r, slot in _live(idx_mapping):
        computed, length = int(num_computed_tokens[slot]), int(prefill_len[slot])
        needed = max(computed + starts[r + 1] - starts[r], length)
        if computed < length and needed > columns:
            expected = f"{needed} tokens of slot {slot}"
            raise MetadataError(operation, "all_token_ids", f"of {columns} columns", expected)


def require_logit_offsets(
    operation: str, idx_mapping: torch.Tensor, cu_num_logits: torch.Tensor
) -> None:
    """Require offsets of logits that rise from 0."""
    check_offsets(operation, "cu_num_logits", cu_num_logits[: len(idx_mapping) + 1])


def require_drafts(
    operation: str,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
    num_new_sampled_tokens: int,
) -> None:
    """Require at most as many logits of a row as it has query tokens, and drafts for them."""
    most = draft_tokens.shape[1] + num_new_sampled_tokens
    counts = _logits(operation, idx_mapping, cu_num_logits, "num_logits", num_logits, most)
    starts = query_start_loc.tolist()
    for r, count in enumerate(counts):
        if count > starts[r + 1] - starts[r]:
            expected = f"at most the {starts[r + 1] - starts[r]} query tokens"
            raise MetadataError(operation, "cu_num_logits", f"{count} logits in row {r}", expected)


def require_expandable(
    operation: str,
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> None:
    """Require as many logits as the offsets have, at most `max_expand_len` a row."""
    total, field = total_num_logits, "total_num_logits"
    _logits(operation, idx_mapping, cu_num_logits, field, total, max_expand_len)


def _logits(
    operation: str,
    idx_mapping: torch.Tensor,
    cu_num_logits: torch.Tensor,
    total_field: str,
    total: int,
    most: int,
) -> list[int]:
    """Return each row's logits, at most `most`; require `total` of all."""
    offsets = cu_num_logits[: len(idx_mapping) + 1].tolist()
    if offsets[-1] != total:
        raise MetadataError(operation, total_field, total, f"cu_num_logits' end {offsets[-1]}")
    counts = [end - start for start, end in pairwise(offsets)]
    if max(counts, default=0) > most:
        got = f"{max(counts)} logits in a row"
        raise MetadataError(operation, "cu_num_logits", got, f"at most {most}")
    return counts


def require_sampled_logits(
    operation: str,
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> None:
    """Require at most as many sampled tokens of a row past its prompt as it has logits."""
    offsets = cu_num_logits.tolist()
    for r, slot in _live(idx_mapping):
        sampled, logits = int(num_sampled[r]), offsets[r + 1] - offsets[r]
        if int(seq_lens[r]) >= int(prefill_len[slot]) and not 0 <= sampled <= logits:
            expected = f"at most the {logits} logits of row {r}"
            raise MetadataError(operation, "num_sampled", sampled, expected)


def require_room(
    operation: str,
    idx_mapping: torch.Tensor,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
) -> None:
    """Require sampled tokens that there are, and room for them in the histories."""
    columns, room = sampled_tokens.shape[1], all_token_ids.shape[1]
    for r, slot in _live(idx_mapping):
        sampled, length = int(num_sampled[r]), int(total_len[slot])
        if not 0 <= sampled <= columns:
            expected = f"at most the {columns} columns of sampled_tokens"
            raise MetadataError(operation, "num_sampled", sampled, expected)
        if not 0 <= length <= room - sampled:
            expected = f"room for {sampled} more of {room} tokens"
            raise MetadataError(operation, "total_len", length, expected)


def require_rejectable(
    operation: str,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
) -> None:
    """Require computed tokens that stay at least 0."""
    starts = None if query_start_loc is None else query_start_loc.tolist()
    for r, slot in _live(idx_mapping):
        query_len = starts[r + 1] - starts[r] if starts else 0
        most, rejected = int(num_computed_tokens[slot]) + query_len, int(num_rejected[r])
        if not 0 <= rejected <= most:
            expected = f"at most the {most} tokens of slot {slot}"
            raise MetadataError(operation, "num_rejected", rejected, expected)


def require_vocabulary(
    operation: str,
    idx_mapping: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
) -> None:
    """Require tokens that can be counted."""
    if output_bin_counts is None:
        return
    vocabulary = output_bin_counts.shape[1]
    for r, _ in _live(idx_mapping):
        for token in sampled_tokens[r, : int(num_sampled[r])].tolist():
            if not 0 <= token < vocabulary:
                expected = f"a token below {vocabulary}"
                raise MetadataError(operation, "sampled_tokens", token, expected)


def _live(idx_mapping: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield row and slot of each row with a request."""
    return ((r, slot) for r, slot in enumerate(idx_mapping.tolist()) if slot >= 0)
