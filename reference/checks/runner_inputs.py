"""Checks of the inputs of model runner V2 (SPEC.md section 13).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from ..interface.errors import MetadataError
from .block_tables import BOTH, check_mapping, check_starts, check_values
from .common import check_int

_I32, _I64 = (torch.int32,), (torch.int64,)


def check_positions(
    operation: str,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Require buffers that hold the rows and tokens."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_values(operation, "num_computed_tokens", num_computed_tokens, (None,), _I32, device)
    check_values(operation, "pos", pos, (None,), _I64, device)
    check_values(operation, "seq_lens", seq_lens, (rows,), _I32, device)
    mapping = check_mapping(operation, idx_mapping, num_computed_tokens.shape[0])
    check_starts(operation, "query_start_loc", query_start_loc, rows, device, most=pos.shape[0])
    _check_lengths(operation, "num_computed_tokens", num_computed_tokens, mapping)


def check_prefill(
    operation: str,
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Require token histories that hold each prefill's query."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_values(operation, "num_computed_tokens", num_computed_tokens, (None,), _I32, device)
    slots = num_computed_tokens.shape[0]
    check_values(operation, "prefill_len", prefill_len, (slots,), _I32, device)
    check_values(operation, "all_token_ids", all_token_ids, (slots, None), _I32, device)
    check_values(operation, "next_prefill_tokens", next_prefill_tokens, (None, slots), _I32, device)
    check_values(operation, "input_ids", input_ids, (None,), _I32, device)
    mapping = check_mapping(operation, idx_mapping, slots, distinct=True)
    most = input_ids.shape[0]
    starts = check_starts(operation, "query_start_loc", query_start_loc, rows, device, most=most)
    _check_lengths(operation, "num_computed_tokens", num_computed_tokens, mapping)
    _check_lengths(operation, "prefill_len", prefill_len, mapping)
    for r, slot in _live(mapping):
        computed, length = int(num_computed_tokens[slot]), int(prefill_len[slot])
        end = computed + starts[r + 1] - starts[r] if starts else 0
        if computed < length and max(end, length) > all_token_ids.shape[1]:
            given = f"of {all_token_ids.shape[1]} columns"
            expected = f"{max(end, length)} tokens of slot {slot}"
            raise MetadataError(operation, "all_token_ids", given, expected)


def check_combined(
    operation: str,
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
    num_new_sampled_tokens: int,
) -> None:
    """Require at most as many logits of a row as it has query tokens, and drafts for them."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_int(operation, "num_new_sampled_tokens", num_new_sampled_tokens, 0)
    if num_new_sampled_tokens > 1:
        given = num_new_sampled_tokens
        raise MetadataError(operation, "num_new_sampled_tokens", given, "0 or 1")
    check_values(operation, "input_ids", input_ids, (None,), _I32, device)
    check_values(operation, "prefill_len", prefill_len, (None,), _I32, device)
    slots = prefill_len.shape[0]
    _check_last(operation, last_sampled_tokens, slots, device)
    check_values(operation, "draft_tokens", draft_tokens, (slots, None), BOTH, device)
    check_values(operation, "seq_lens", seq_lens, (rows,), _I32, device)
    mapping = check_mapping(operation, idx_mapping, slots)
    most = input_ids.shape[0]
    starts = check_starts(operation, "query_start_loc", query_start_loc, rows, device, most=most)
    logits = _check_logits(
        operation,
        cu_num_logits,
        num_logits,
        "num_logits",
        rows,
        device,
        most=draft_tokens.shape[1] + num_new_sampled_tokens,
    )
    _check_lengths(operation, "prefill_len", prefill_len, mapping)
    for r, count in enumerate(logits or ()):
        if starts and count > starts[r + 1] - starts[r]:
            expected = f"at most the {starts[r + 1] - starts[r]} query tokens"
            raise MetadataError(operation, "cu_num_logits", f"{count} logits in row {r}", expected)


def check_expanded(
    operation: str,
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> None:
    """Require as many logits as the offsets have, at most `max_expand_len` a row."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_mapping(operation, idx_mapping, 2**31)
    check_int(operation, "max_expand_len", max_expand_len, 0)
    _check_logits(
        operation,
        cu_num_logits,
        total_num_logits,
        "total_num_logits",
        rows,
        device,
        most=max_expand_len,
    )


def check_counts(
    operation: str,
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> None:
    """Require at most as many sampled tokens of a row as it has logits."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_values(operation, "num_sampled", num_sampled, (rows,), _I32, device)
    check_values(operation, "seq_lens", seq_lens, (rows,), _I32, device)
    check_values(operation, "prefill_len", prefill_len, (None,), _I32, device)
    mapping = check_mapping(operation, idx_mapping, prefill_len.shape[0])
    _check_lengths(operation, "prefill_len", prefill_len, mapping)
    offsets = check_starts(operation, "cu_num_logits", cu_num_logits, rows, device, most=2**31 - 1)
    for r, slot in _live(mapping):
        sampled, past = int(num_sampled[r]), int(seq_lens[r]) >= int(prefill_len[slot])
        logits = offsets[r + 1] - offsets[r] if offsets else 0
        if past and not 0 <= sampled <= logits:
            expected = f"at most the {logits} logits of row {r}"
            raise MetadataError(operation, "num_sampled", sampled, expected)


def check_update(
    operation: str,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    sampled_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
) -> None:
    """Require room for the sampled tokens, and computed tokens that stay at least 0."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_values(operation, "num_computed_tokens", num_computed_tokens, (None,), _I32, device)
    slots = num_computed_tokens.shape[0]
    _check_last(operation, last_sampled_tokens, slots, device)
    if output_bin_counts is not None:
        check_values(operation, "output_bin_counts", output_bin_counts, (slots, None), _I32, device)
    check_values(operation, "sampled_tokens", sampled_tokens, (rows, None), BOTH, device)
    check_values(operation, "num_sampled", num_sampled, (rows,), _I32, device)
    check_values(operation, "num_rejected", num_rejected, (rows,), _I32, device)
    check_values(operation, "all_token_ids", all_token_ids, (slots, None), _I32, device)
    check_values(operation, "total_len", total_len, (slots,), _I32, device)
    mapping = check_mapping(operation, idx_mapping, slots, distinct=True)
    starts = None
    if query_start_loc is not None:
        starts = check_starts(
            operation, "query_start_loc", query_start_loc, rows, device, most=2**31 - 1
        )
    for r, slot in _live(mapping):
        sampled, rejected = int(num_sampled[r]), int(num_rejected[r])
        if not 0 <= sampled <= sampled_tokens.shape[1]:
            expected = f"at most the {sampled_tokens.shape[1]} columns of sampled_tokens"
            raise MetadataError(operation, "num_sampled", sampled, expected)
        length = int(total_len[slot])
        if not 0 <= length <= all_token_ids.shape[1] - sampled:
            expected = f"room for {sampled} more of {all_token_ids.shape[1]} tokens"
            raise MetadataError(operation, "total_len", length, expected)
        query_len = starts[r + 1] - starts[r] if starts else 0
        computed = int(num_computed_tokens[slot])
        if not 0 <= rejected <= computed + query_len:
            expected = f"at most the {computed + query_len} tokens of slot {slot}"
            raise MetadataError(operation, "num_rejected", rejected, expected)
        if output_bin_counts is not None:
            _check_tokens(operation, sampled_tokens[r, :sampled], output_bin_counts.shape[1])


def check_advance(
    operation: str,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
) -> None:
    """Require slots that exist, and offsets of their rows."""
    rows, device = _rows(operation, idx_mapping), idx_mapping.device
    check_values(operation, "num_computed_tokens", num_computed_tokens, (None,), _I32, device)
    check_mapping(operation, idx_mapping, num_computed_tokens.shape[0], distinct=True)
    check_starts(operation, "query_start_loc", query_start_loc, rows, device, most=2**31 - 1)


def _rows(operation: str, idx_mapping: torch.Tensor) -> int:
    rows: int = check_values(operation, "idx_mapping", idx_mapping, (None,), BOTH).shape[0]
    return rows


def _live(mapping: list[int] | None) -> Iterator[tuple[int, int]]:
    """Yield row and slot of each row with a request; none if the rows are on a device."""
    return ((r, slot) for r, slot in enumerate(mapping or ()) if slot >= 0)


def _check_lengths(
    operation: str, field: str, lengths: torch.Tensor, mapping: list[int] | None
) -> None:
    for _, slot in _live(mapping):
        if int(lengths[slot]) < 0:
            given = f"{int(lengths[slot])} in slot {slot}"
            raise MetadataError(operation, field, given, "a length of at least 0")


def _check_last(operation: str, tokens: object, slots: int, device: torch.device) -> None:
    """Require one token of each slot, (slots,) or (slots, 1)."""
    flat = isinstance(tokens, torch.Tensor) and tokens.ndim == 1
    shape: tuple[int, ...] = (slots,) if flat else (slots, 1)
    found = check_values(operation, "last_sampled_tokens", tokens, shape, BOTH, device)
    if found.ndim == 2 and (found.shape[1] != 1 or not found.is_contiguous()):
        given = f"of shape {tuple(found.shape)}, strides {found.stride()}"
        raise MetadataError(operation, "last_sampled_tokens", given, "one dense column")


def _check_logits(
    operation: str,
    cu_num_logits: torch.Tensor,
    total: int,
    total_field: str,
    rows: int,
    device: torch.device,
    *,
    most: int,
) -> list[int] | None:
    """Require offsets up to `total`, at most `most` a row; return each row's logits."""
    check_int(operation, total_field, total, 0)
    offsets = check_starts(operation, "cu_num_logits", cu_num_logits, rows, device, most=2**31 - 1)
    if offsets is None:
        return None
    if offsets[-1] != total:
        raise MetadataError(operation, total_field, total, f"cu_num_logits' end {offsets[-1]}")
    counts = [end - start for start, end in pairwise(offsets)]
    if max(counts, default=0) > most:
        given = f"{max(counts)} logits in a row"
        raise MetadataError(operation, "cu_num_logits", given, f"at most {most}")
    return counts


def _check_tokens(operation: str, tokens: torch.Tensor, vocabulary: int) -> None:
    for token in tokens.tolist():
        if not 0 <= token < vocabulary:
            expected = f"a token below {vocabulary}"
            raise MetadataError(operation, "sampled_tokens", token, expected)
