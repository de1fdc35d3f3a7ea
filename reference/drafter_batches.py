"""Turn the target model's batch into the drafter's (SPEC.md section 14)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch

from .checks.drafter_batches import (
    SEQUENCE_LENGTHS,
    check_counts,
    check_lists,
    check_shares,
    check_sums,
)
from .definition.definition import operation
from .definition.roles import Array, Metadata, Object
from .interface import MetadataError
from .interface.fields import alignments
from .interface.protocols import SpecDecodeMetadata
from .shared import CommonAttentionMetadata

__all__ = [
    "extend_all_queries_by_N",
    "prepare_inputs",
    "prepare_inputs_padded",
]


_Batch = Annotated[CommonAttentionMetadata, Metadata(sequences=True, rows=True)]
_Child = Annotated[CommonAttentionMetadata, Object()]
_OfRows = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32)]


@operation(requires=(check_lists,), results=("batch", "token_indices"))
def prepare_inputs(
    common_attn_metadata: _Batch,
    sampled_token_ids: Annotated[list[list[int]], Object()],
    num_draft_tokens: Annotated[list[int], Object()],
) -> tuple[_Child, Annotated[torch.Tensor, Array(shape=("?",))]]:
    """Return the batch without its rejected tokens, and the indices of the tokens it keeps.

    `sampled_token_ids` are the accepted drafts of each request and one token more;
    `num_draft_tokens` the drafts that its query ends with. Indices are int32 or int64 like
    the offsets. Every aligned field follows its row or its token, graph padding is dropped,
    and the logits fields are None. Raise MetadataError for lists of another batch, more
    sampled tokens than drafts + 1, a query shorter than its drafts + 1, and for
    `dcp_local_seq_lens` where a token is rejected. SPEC.md section 14.
    """
    md = common_attn_metadata
    offsets = md.query_start_loc_cpu.tolist()
    starts, rejected = [0], []
    kept: list[int] = []
    for row, (first, end) in enumerate(pairwise(offsets)):
        drafts = num_draft_tokens[row]
        rejected.append(drafts + 1 - len(sampled_token_ids[row]) if drafts else 0)
        kept += range(first, end - rejected[row])
        starts.append(len(kept))
    lengths = [s - n for s, n in zip(md.seq_lens_cpu.tolist(), rejected, strict=True)]
    child = _changed(
        md,
        query_start_loc=_like(md.query_start_loc, starts),
        query_start_loc_cpu=_like(md.query_start_loc_cpu, starts),
        num_actual_tokens=len(kept),
        max_query_len=max((end - first for first, end in pairwise(starts)), default=0),
        max_seq_len=max(lengths, default=0),
        **_lengths(md, [-n for n in rejected]),
        **{name: _taken(value, kept) for name, value in _token_fields(md).items()},
    )
    return child, _like(md.query_start_loc, kept)


@operation(
    requires=(check_sums, check_counts),
    results=("batch", "token_indices_to_sample", "num_rejected_tokens"),
)
def prepare_inputs_padded(
    common_attn_metadata: _Batch,
    spec_decode_metadata: Annotated[SpecDecodeMetadata, Object((object,))],
    valid_sampled_tokens_count: Annotated[torch.Tensor, Array(shape=("R",), least=0)],
) -> tuple[_Child, _OfRows, _OfRows]:
    """Return the batch with its rejected tokens, the tokens to sample and the rejected counts.

    `spec_decode_metadata.cu_num_draft_tokens` (R,) are running sums of the drafts and
    `valid_sampled_tokens_count` (R,) the accepted drafts plus one. The batch keeps offsets,
    lengths and rows, drops graph padding tokens, and its logits fields are None. The index
    of the last token that is kept, and the count, are int32 (R,). Raise MetadataError for
    counts of another batch, and on the CPU for sums that fall, a count outside 0 to
    drafts + 1, and a query shorter than its drafts + 1. SPEC.md section 14.
    """
    md = common_attn_metadata
    ends = spec_decode_metadata.cu_num_draft_tokens.tolist()
    counts, offsets = valid_sampled_tokens_count.tolist(), md.query_start_loc.tolist()
    to_sample, rejected = [], []
    for row, (before, end) in enumerate(pairwise([0, *ends])):
        drafts = end - before
        rejected.append(drafts + 1 - counts[row] if drafts else 0)
        to_sample.append(offsets[row + 1] - 1 - rejected[row])
    starts = md.query_start_loc_cpu.tolist()
    tokens = starts[-1]
    child = _changed(
        md,
        num_actual_tokens=tokens,
        max_query_len=max((end - first for first, end in pairwise(starts)), default=0),
        **{name: value[:tokens] for name, value in _token_fields(md).items()},
    )
    device = md.query_start_loc.device
    return (
        child,
        torch.tensor(to_sample, dtype=torch.int32, device=device),
        torch.tensor(rejected, dtype=torch.int32, device=device),
    )


def _has_slots(
    operation: str,
    sizes: dict[str, int],
    common_attn_metadata: CommonAttentionMetadata,
    N: int,  # noqa: N803
) -> None:
    """Require a slot for each token of the longer batch, of which no rank has a share."""
    tokens = common_attn_metadata.num_actual_tokens + sizes["R"] * N
    if sizes["S"] < tokens:
        length = f"of length {sizes['S']}"
        raise MetadataError(operation, "new_slot_mapping", length, f"at least {tokens}")
    check_shares(operation, common_attn_metadata, bool(N and sizes["R"]))


def _in_order(
    sizes: dict[str, int], arange: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, str]]:
    """Require the numbers from 0."""
    counts = arange[: sizes["R"] + 1]
    yield "arange", counts != torch.arange(len(counts)), "0, 1, 2 in order"


@operation(requires=(_has_slots, _in_order))
def extend_all_queries_by_N(  # noqa: N802  # the published name
    common_attn_metadata: _Batch,
    N: int,  # noqa: N803
    arange: Annotated[torch.Tensor, Array(shape=("R+1",), longer=True)],  # noqa: ARG001
    new_slot_mapping: Annotated[torch.Tensor, Array("slots", shape=("S",))],
) -> _Child:
    """Return the batch with N further query tokens at the end of each row.

    `arange` holds 0, 1, 2, … with at least R + 1 entries, `new_slot_mapping` int64 an entry
    for each token of the result. Sequences and bounds grow by N; the further entries of
    other token-aligned fields have their declared fill; `positions` and the logits fields are
    None. Raise MetadataError for a malformed batch, shorter tensors, and for
    `dcp_local_seq_lens` where sequences grow. SPEC.md section 14.
    """
    md = common_attn_metadata
    fields: dict[str, Any] = {}
    for name, (alignment, fill) in alignments(type(md)).items():
        value = getattr(md, name)
        if alignment == "offsets":
            fields[name] = _like(value, [start + N * r for r, start in enumerate(value.tolist())])
        elif name == "positions":
            fields[name] = None
        elif alignment == "token" and value is not None:
            fields[name] = _extended(value, md, N, fill)
    fields |= _lengths(md, [N] * md.num_reqs)
    fields |= {
        "num_actual_tokens": md.num_actual_tokens + md.num_reqs * N,
        "max_query_len": md.max_query_len + N,
        "max_seq_len": md.max_seq_len + N,
        "slot_mapping": new_slot_mapping,
        "causal": md.causal,
    }
    return _changed(md, **fields)


def _extended(value: Any, md: CommonAttentionMetadata, more: int, fill: int) -> Any:
    """Return a field with an entry a token, with `more` entries of `fill` behind each row."""
    offsets, entries = md.query_start_loc_cpu.tolist(), list(value[: md.num_actual_tokens])
    grown: list[Any] = []
    for first, end in pairwise(offsets):
        grown += [*entries[first:end], *[fill] * more]
    grown += entries[offsets[-1] :]
    if isinstance(value, list | tuple):
        return type(value)(grown)
    shape = (len(grown), *value.shape[1:])
    filled = (
        value.new_empty(shape) if isinstance(value, torch.Tensor) else np.empty(shape, value.dtype)
    )
    for index, entry in enumerate(grown):
        filled[index] = entry
    return filled


def _changed(md: CommonAttentionMetadata, **changes: Any) -> CommonAttentionMetadata:
    """Return a causal batch of the same class, without logits fields, with some fields changed."""
    fields = {name: getattr(md, name) for name in alignments(type(md))}
    logits = ("logits_indices_padded", "num_logits_indices", "max_logits_per_req")
    unset = dict.fromkeys(name for name in logits if name in fields)
    return type(md)(**fields | unset | {"causal": True} | changes)


def _lengths(md: CommonAttentionMetadata, added: list[int]) -> dict[str, torch.Tensor]:
    """Return the fields of sequence lengths with `added[r]` more tokens in row r."""
    changed = {}
    for name in SEQUENCE_LENGTHS:
        lengths = getattr(md, name, None)
        if lengths is not None:
            grown = [length + more for length, more in zip(lengths.tolist(), added, strict=True)]
            changed[name] = _like(lengths, grown)
    return changed


def _token_fields(md: CommonAttentionMetadata) -> dict[str, Any]:
    """Return the fields with an entry a token that are set."""
    fields = {
        name: getattr(md, name)
        for name, (alignment, _) in alignments(type(md)).items()
        if alignment == "token"
    }
    return {name: value for name, value in fields.items() if value is not None}


def _taken(value: Any, tokens: list[int]) -> Any:
    """Return the entries of some tokens, in the field's own type."""
    if isinstance(value, torch.Tensor):
        return value[torch.tensor(tokens, dtype=torch.int64, device=value.device)]
    if isinstance(value, np.ndarray):
        return value[np.array(tokens, dtype=np.int64)]
    return type(value)(value[token] for token in tokens)


def _like(tensor: torch.Tensor, values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)
