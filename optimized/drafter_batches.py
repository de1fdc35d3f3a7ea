"""Turn the target model's batch into the drafter's (SPEC.md section 14)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from attnproof.reference.checks.drafter_batches import SEQUENCE_LENGTHS
from attnproof.reference.interface import SpecDecodeMetadata
from attnproof.reference.interface.fields import alignments
from attnproof.reference.shared import CommonAttentionMetadata

from .checking import check_call, checks
from .dispatch import on_device, staging, upload
from .host import drafter_batches as loops
from .host.arrays import vector

__all__ = [
    "extend_all_queries_by_N",
    "prepare_inputs",
    "prepare_inputs_padded",
]

_checked = checks.follow(globals())

_INT64 = torch.int64
_INT32S: Final = torch.empty(0, dtype=torch.int32)
_INT64S: Final = torch.empty(0, dtype=torch.int64)
_LOGITS: Final = ("logits_indices_padded", "num_logits_indices", "max_logits_per_req")


def prepare_inputs(
    common_attn_metadata: CommonAttentionMetadata,
    sampled_token_ids: list[list[int]],
    num_draft_tokens: list[int],
) -> tuple[CommonAttentionMetadata, torch.Tensor]:
    """Return the batch without its rejected tokens, and the indices of the tokens it keeps.

    Result and errors as in `reference`. On a device: one asynchronous copy of the offsets
    and one kernel, no sync. SPEC.md section 14.
    """
    md = common_attn_metadata
    if _checked:
        check_call("prepare_inputs", md, sampled_token_ids, num_draft_tokens)
    rejected = [
        drafts + 1 - len(sampled) if drafts else 0
        for drafts, sampled in zip(num_draft_tokens, sampled_token_ids, strict=True)
    ]
    starts, lengths = md.query_start_loc_cpu, md.seq_lens_cpu
    counts = torch.tensor(rejected, dtype=_INT64)
    new_starts, new_lengths = starts.new_empty(md.num_reqs + 1), lengths.new_empty(md.num_reqs)
    tokens, longest_query, longest = loops.keep_rows(
        md.num_reqs,
        *vector(starts),
        *vector(lengths),
        counts.data_ptr(),
        new_starts.data_ptr(),
        new_lengths.data_ptr(),
    )
    prepare = _on_device if on_device(md.query_start_loc) else _on_host
    device_starts, device_lengths, indices, slots = prepare(md, new_starts, new_lengths, tokens)
    changes = {
        "query_start_loc": device_starts,
        "query_start_loc_cpu": new_starts,
        "seq_lens": device_lengths,
        "seq_lens_cpu": new_lengths,
        "num_actual_tokens": tokens,
        "max_query_len": longest_query,
        "max_seq_len": longest,
        "slot_mapping": slots,
    }
    return _child(md, changes, counts, indices), indices


def prepare_inputs_padded(
    common_attn_metadata: CommonAttentionMetadata,
    spec_decode_metadata: SpecDecodeMetadata,
    valid_sampled_tokens_count: torch.Tensor,
) -> tuple[CommonAttentionMetadata, torch.Tensor, torch.Tensor]:
    """Return the batch with its rejected tokens, the tokens to sample and the rejected counts.

    Result and errors as in `reference`. On a device: one kernel, no copy and no sync.
    SPEC.md section 14.
    """
    md, counts = common_attn_metadata, valid_sampled_tokens_count
    if _checked:
        check_call("prepare_inputs_padded", md, spec_decode_metadata, counts)
    ends, offsets = spec_decode_metadata.cu_num_draft_tokens, md.query_start_loc
    if on_device(offsets):
        from .kernels.drafter_rejected import count_rejected_on_device

        to_sample, rejected = count_rejected_on_device(ends, counts, offsets)
    else:
        to_sample, rejected = _INT32S.new_empty(md.num_reqs), _INT32S.new_empty(md.num_reqs)
        loops.count_rejected(
            md.num_reqs,
            *vector(ends),
            *vector(counts),
            *vector(offsets),
            to_sample.data_ptr(),
            rejected.data_ptr(),
        )
    starts = md.query_start_loc_cpu
    tokens, longest = loops.query_bounds(md.num_reqs, *vector(starts))
    fields = {}
    for name, (alignment, _) in alignments(type(md)).items():
        value = getattr(md, name)
        is_longer = alignment == "token" and value is not None and len(value) > tokens
        fields[name] = value[:tokens] if is_longer else value
    fields["num_actual_tokens"], fields["max_query_len"] = tokens, longest
    return type(md)(**fields | _without_logits(fields)), to_sample, rejected


def extend_all_queries_by_N(  # noqa: N802  # the published name
    common_attn_metadata: CommonAttentionMetadata,
    N: int,  # noqa: N803
    arange: torch.Tensor,
    new_slot_mapping: torch.Tensor,
) -> CommonAttentionMetadata:
    """Return the batch with N further query tokens at the end of each row.

    Result and errors as in `reference`. No sync. SPEC.md section 14.
    """
    md = common_attn_metadata
    if _checked:
        check_call("extend_all_queries_by_N", md, N, arange, new_slot_mapping)
    rows = md.num_reqs
    fields: dict[str, Any] = {}
    for name, (alignment, fill) in alignments(type(md)).items():
        value = fields[name] = getattr(md, name)
        if name in SEQUENCE_LENGTHS and value is not None:
            fields[name] = value + N
        elif name == "positions":
            fields[name] = None
        elif alignment == "token" and value is not None and name != "slot_mapping":
            fields[name] = _extended(value, md, N, fill)
    starts, mirror = md.query_start_loc, md.query_start_loc_cpu
    steps = arange[: rows + 1].to(starts.dtype)
    fields |= _without_logits(fields) | {
        "query_start_loc": torch.add(starts, steps, alpha=N),
        "query_start_loc_cpu": mirror + N * torch.arange(rows + 1, dtype=mirror.dtype),
        "num_actual_tokens": md.num_actual_tokens + rows * N,
        "max_query_len": md.max_query_len + N,
        "max_seq_len": md.max_seq_len + N,
        "slot_mapping": new_slot_mapping,
        "causal": md.causal,
    }
    return type(md)(**fields)


def _without_logits(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a causal batch without sampled tokens has instead."""
    return {"causal": True} | dict.fromkeys(name for name in _LOGITS if name in fields)


def _extended(value: Any, md: CommonAttentionMetadata, more: int, fill: int) -> Any:
    """Return a field with an entry a token, with `more` entries of `fill` behind each row."""
    tokens, on_cpu = md.num_actual_tokens, not isinstance(value, torch.Tensor) or value.is_cpu
    ends = (md.query_start_loc_cpu if on_cpu else md.query_start_loc)[1:].contiguous()
    entries = torch.arange(tokens, dtype=ends.dtype, device=ends.device)
    places = entries + more * torch.searchsorted(ends, entries, right=True)
    length = tokens + md.num_reqs * more
    if isinstance(value, torch.Tensor):
        grown = value.new_full((length, *value.shape[1:]), fill)
        return grown.index_copy_(0, places.to(_INT64), value[:tokens])
    if isinstance(value, np.ndarray):
        array = np.full((length, *value.shape[1:]), fill, dtype=value.dtype)
        array[places.numpy()] = value[:tokens]
        return array
    items = [fill] * length
    for place, item in zip(places.tolist(), value, strict=False):
        items[place] = item
    return type(value)(items)


_Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Offsets, lengths, token indices and slots of the kept tokens, on the batch's device."""


def _on_host(
    md: CommonAttentionMetadata, starts: torch.Tensor, lengths: torch.Tensor, tokens: int
) -> _Outputs:
    dtype = md.query_start_loc.dtype
    indices, slots = starts.new_empty(tokens, dtype=dtype), _INT64S.new_empty(tokens)
    loops.keep_tokens(
        md.num_reqs,
        *vector(md.query_start_loc_cpu),
        starts.data_ptr(),
        md.slot_mapping.data_ptr(),
        md.slot_mapping.stride(0),
        indices.data_ptr(),
        dtype is _INT64,
        slots.data_ptr(),
    )
    return starts.to(dtype, copy=True), lengths.to(md.seq_lens.dtype, copy=True), indices, slots


def _on_device(
    md: CommonAttentionMetadata, starts: torch.Tensor, _lengths: torch.Tensor, tokens: int
) -> _Outputs:
    from .kernels.drafter_kept_tokens import keep_tokens_on_device

    offsets = md.query_start_loc
    staged = staging(md.num_reqs + 1, offsets.dtype, offsets.device)
    sent = upload(staged.copy_(starts), offsets.device)
    return sent, *keep_tokens_on_device(offsets, sent, md.seq_lens, md.slot_mapping, tokens)


def _child(
    md: CommonAttentionMetadata,
    changes: dict[str, Any],
    rejected: torch.Tensor,
    indices: torch.Tensor,
) -> CommonAttentionMetadata:
    """Return the batch of the kept tokens; fields that are not in `changes` follow here."""
    fields: dict[str, Any] = {}
    for name, (alignment, _) in alignments(type(md)).items():
        value = getattr(md, name)
        if name in changes or value is None:
            value = changes.get(name)
        elif alignment == "token":
            value = _taken(value, indices, changes["query_start_loc_cpu"], md)
        elif name in SEQUENCE_LENGTHS:
            value = value - rejected.to(value.dtype)
        fields[name] = value
    return type(md)(**fields | _without_logits(fields))


def _taken(
    value: Any, indices: torch.Tensor, starts: torch.Tensor, md: CommonAttentionMetadata
) -> Any:
    """Return the kept entries of a field with an entry a token."""
    if isinstance(value, torch.Tensor) and value.device == indices.device:
        return value[indices]
    # A field on the host: the indices are computed again there, which needs no sync.
    offsets = md.query_start_loc_cpu
    shift = (offsets[:-1] - starts[:-1]).repeat_interleave(starts.diff())
    kept = torch.arange(int(starts[-1])) + shift
    if isinstance(value, torch.Tensor):
        return value[kept]
    if isinstance(value, list | tuple):
        return type(value)(value[token] for token in kept.tolist())
    return value[kept.numpy()]
