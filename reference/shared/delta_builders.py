"""Builders of state-space metadata that tell speculative rows by their drafts (section 17)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Final

import torch

from ..definition.definition import operation
from ..definition.roles import Object
from ..interface.state_space import (
    GDNMetadata,
    KDAMetadata,
    PLEShortConvMetadata,
    StateSpaceConfig,
)
from .state_rows import (
    NULL,
    Accepted,
    BatchMetadata,
    BatchRows,
    Config,
    Drafts,
    is_ready,
    listed,
    offsets,
)

__all__ = ["gdn_build", "kda_build", "ple_short_conv_build"]

_GDN_CHUNK: Final = 64
"""Tokens of a chunk of gated delta net's prefills."""


def has_counts(
    num_accepted_tokens: torch.Tensor | None, num_decode_draft_tokens_cpu: torch.Tensor | None
) -> Iterator[tuple[str, bool, str]]:
    """Require accepted tokens beside drafts."""
    drafts = num_decode_draft_tokens_cpu
    missing = num_accepted_tokens is None and drafts is not None and bool((drafts >= 0).any())
    yield "num_accepted_tokens", missing, "a tensor beside drafts"


@operation(requires=(is_ready, has_counts))
def gdn_build(
    common_attn_metadata: BatchMetadata,
    config: Config,
    num_accepted_tokens: Accepted | None = None,
    num_decode_draft_tokens_cpu: Drafts | None = None,
) -> Annotated[GDNMetadata, Object()]:
    """Build the metadata of gated delta net layers.

    Arguments and errors are those of `mamba_build`. Indices of tokens are integers of any
    width. SPEC.md section 17.
    """
    rows = BatchRows(common_attn_metadata, config)
    drafts = listed(num_decode_draft_tokens_cpu, [])
    speculative = _speculative(drafts, config)
    if not speculative:
        built = GDNMetadata(**_without_drafts(rows))
        return _with_chunks(built, built.num_decodes) if built.num_prefills else built
    others = [row for row in range(len(rows.queries)) if row not in speculative]
    tokens, queries = rows.tokens(others), {rows.queries[row] for row in speculative}
    most = config.max_num_seqs * rows.width
    padded = not tokens and config.has_full_graphs and len(speculative) <= most
    built = GDNMetadata(
        num_decodes=0,
        num_decode_tokens=0,
        num_prefills=sum(rows.queries[row] > 0 for row in others),
        num_prefill_tokens=len(tokens),
        **_of_drafts(rows, speculative, num_accepted_tokens, most if padded else 0),
        spec_sequence_masks=rows.new([draft >= 0 for draft in drafts], torch.bool),
        spec_token_indx=rows.new(rows.tokens(speculative)),
        non_spec_token_indx=rows.new(tokens),
        uniform_spec_sequence_length=queries.pop() if len(queries) == 1 else None,
    )
    return _with_chunks(replace(built, **_of_others(rows, others)), 0) if tokens else built


@operation(requires=(is_ready, has_counts))
def kda_build(
    common_attn_metadata: BatchMetadata,
    config: Config,
    num_accepted_tokens: Accepted | None = None,
    num_decode_draft_tokens_cpu: Drafts | None = None,
) -> Annotated[KDAMetadata, Object()]:
    """Build the metadata of Kimi delta attention layers.

    Arguments and errors are those of `gdn_build`. SPEC.md section 17.
    """
    rows = BatchRows(common_attn_metadata, config)
    speculative = _speculative(listed(num_decode_draft_tokens_cpu, []), config)
    if not speculative:
        return KDAMetadata(**_without_drafts(rows))
    others = [row for row, q in enumerate(rows.queries) if q and row not in speculative]
    # Decodes are packed: a token each, and a state that is the request's own.
    prefills = any(rows.prefilling[row] or rows.queries[row] > 1 for row in others)
    tokens, most = rows.tokens(others), config.max_num_seqs * rows.width
    padded = not others and config.has_full_graphs and len(rows.queries) <= most
    built = KDAMetadata(
        num_decodes=0 if prefills else len(others),
        num_decode_tokens=0 if prefills else len(tokens),
        num_prefills=len(others) if prefills else 0,
        num_prefill_tokens=len(tokens) if prefills else 0,
        **_of_drafts(rows, speculative, num_accepted_tokens, most if padded else 0),
    )
    if not others:
        return built
    is_first = speculative[0] == 0
    fields = _of_others(rows, others)
    if not prefills:
        fields |= {"non_spec_query_start_loc": None, "has_initial_state": None}
    spec_tokens = rows.tokens(speculative)
    order = [row in speculative for row, q in enumerate(rows.queries) if q]
    if sum(a != b for a, b in pairwise(order)) == 1:
        fields["spec_token_start"] = 0 if is_first else len(tokens)
        fields["non_spec_token_start"] = len(spec_tokens) if is_first else 0
    fields["spec_token_indx"] = rows.new(spec_tokens)
    fields["non_spec_token_indx"] = rows.new(tokens)
    return replace(built, **fields)


@operation(requires=(is_ready, has_counts))
def ple_short_conv_build(
    common_attn_metadata: BatchMetadata,
    config: Config,
    num_accepted_tokens: Accepted | None = None,
    num_decode_draft_tokens_cpu: Drafts | None = None,
) -> Annotated[PLEShortConvMetadata, Object()]:
    """Build the metadata of short convolutions of per-layer embeddings.

    Arguments and errors are those of `gdn_build`. SPEC.md section 17.
    """
    rows = BatchRows(common_attn_metadata, config)
    drafts = listed(num_decode_draft_tokens_cpu, [])
    speculative = _speculative(drafts, config)
    if not speculative:
        order = [*range(len(rows.queries))]
        split = rows.split(rows.prompts([-1] * len(order)), 1)
        return _short_conv(rows, order, split, num_actual_tokens=rows.num_actual_tokens)
    others = [row for row in range(len(rows.queries)) if row not in speculative]
    decodes = [row for row in others if rows.queries[row] == 1]
    prefills = [row for row in others if rows.queries[row] > 1]
    order, tokens = decodes + prefills, rows.tokens(decodes + prefills)
    split = {
        "num_decodes": len(decodes),
        "num_decode_tokens": len(decodes),
        "num_prefills": len(prefills),
        "num_prefill_tokens": len(tokens) - len(decodes),
    }
    padded = not order and config.has_full_graphs and len(speculative) <= config.max_num_seqs
    most = config.max_num_seqs * rows.width if padded else 0
    fields = _of_drafts(rows, speculative, num_accepted_tokens, most)
    fields["spec_state_indices_tensor"] = fields["spec_state_indices_tensor"][:, 0]
    fields["spec_sequence_masks"] = rows.new([draft >= 0 for draft in drafts], torch.bool)
    if order:
        fields["spec_token_indx"] = rows.new(rows.tokens(speculative))
        fields["non_spec_token_indx"] = rows.new(tokens)
    return _short_conv(rows, order, split, **fields)


def _short_conv(
    rows: BatchRows, order: list[int], split: dict[str, Any], **fields: Any
) -> PLEShortConvMetadata:
    """Return the metadata of decodes and prefills, which are rows in this order."""
    decodes = split["num_decodes"]
    initial = rows.new([rows.computed[row] > 0 for row in order], torch.bool)
    prefills = [rows.queries[row] for row in order[decodes:]]
    return PLEShortConvMetadata(
        **split,
        **fields,
        spec_query_len=rows.width,
        max_prefill_query_len=max(prefills, default=0),
        state_indices_tensor=rows.new([rows.states[row][0] for row in order]),
        has_initial_states_d=initial[:decodes] if decodes else None,
        has_initial_states_p=initial[decodes:] if prefills else None,
        query_start_loc_p=rows.new(offsets(prefills)) if prefills else None,
    )


def _speculative(drafts: list[int], config: StateSpaceConfig) -> list[int]:
    """Return the speculative rows."""
    if not config.num_speculative_tokens:
        return []
    return [row for row, draft in enumerate(drafts) if draft >= 0]


def _without_drafts(rows: BatchRows) -> dict[str, Any]:
    """Return the fields of a step without a speculative row."""
    split = rows.split(rows.first_chunks(), 1)
    prefills = [q for q in rows.queries[split["num_decodes"] :] if q]
    split |= {"num_prefills": len(prefills), "num_prefill_tokens": sum(prefills)}
    fields = split | _of_others(rows, [*range(len(rows.queries))])
    if not prefills:
        fields["has_initial_state"] = None
    return fields | {
        "num_spec_decodes": 0,
        "num_spec_decode_tokens": 0,
        "num_actual_tokens": rows.num_actual_tokens,
    }


def _of_others(rows: BatchRows, others: list[int]) -> dict[str, Any]:
    """Return the fields of rows that are not speculative."""
    return {
        "non_spec_query_start_loc": rows.new(offsets(rows.queries[row] for row in others)),
        "non_spec_state_indices_tensor": rows.new([rows.states[row][0] for row in others]),
        "has_initial_state": rows.new([rows.computed[row] > 0 for row in others], torch.bool),
    }


def _of_drafts(
    rows: BatchRows, speculative: list[int], accepted: torch.Tensor | None, most: int
) -> dict[str, Any]:
    """Return the fields of speculative rows, padded for a graph of at most `most` tokens."""
    queries = [rows.queries[row] for row in speculative]
    # A graph reads a row of each request that it was captured with.
    padding = len(rows.queries) - len(speculative) if sum(queries) <= most else 0
    states = [rows.states[row][: rows.width] for row in speculative]
    assert accepted is not None  # `has_counts` requires them
    counts = accepted.tolist()
    return {
        "num_spec_decodes": len(speculative),
        "num_spec_decode_tokens": sum(queries),
        "num_actual_tokens": rows.num_actual_tokens,
        "spec_query_start_loc": rows.new(offsets(queries + [0] * padding)),
        "spec_state_indices_tensor": rows.new(states + [[NULL] * rows.width] * padding),
        "num_accepted_tokens": rows.new([counts[row] for row in speculative] + [1] * padding),
    }


def _with_chunks(built: GDNMetadata, first: int) -> GDNMetadata:
    """Add what the kernel of prefills reads: rows from `first` on, and their chunks."""
    starts, states = built.non_spec_query_start_loc, built.non_spec_state_indices_tensor
    initial = built.has_initial_state
    assert starts is not None
    assert states is not None
    assert initial is not None
    rebased = starts[first:] - starts[first]
    chunks = [-(-int(length) // _GDN_CHUNK) for length in rebased.diff()]
    pairs = [(row, chunk) for row, count in enumerate(chunks) for chunk in range(count)]
    return replace(
        built,
        chunk_indices=starts.new_tensor(pairs),
        chunk_offsets=starts.new_tensor(offsets(chunks)),
        prefill_query_start_loc=rebased,
        prefill_state_indices=states[first:],
        prefill_has_initial_state=initial[first:],
    )
