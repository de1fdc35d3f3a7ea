"""Builders of state-space metadata (SPEC.md section 17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final

import torch

from ..checks.common import check_int, check_prefilling
from ..definition.definition import operation
from ..definition.roles import Array, Metadata, Object
from ..interface.state_space import GDNMetadata, MambaMetadata, StateSpaceConfig
from .metadata import CommonAttentionMetadata

__all__ = ["gdn_build", "mamba_build"]

_NULL: Final = 0
"""Block that no request has."""
_GDN_CHUNK: Final = 64
"""Tokens of a chunk of gated delta net's prefills."""


def _is_ready(
    operation: str, common_attn_metadata: CommonAttentionMetadata, config: StateSpaceConfig
) -> None:
    """Require the flags of rows in their prompt, and sizes in range."""
    check_prefilling(operation, common_attn_metadata)
    check_int(operation, "block_size", config.block_size, 1)
    check_int(operation, "num_speculative_tokens", config.num_speculative_tokens, 0)
    check_int(operation, "chunk_size", config.chunk_size, 1)


_Batch = Annotated[CommonAttentionMetadata, Metadata(sequences=True)]
_Config = Annotated[StateSpaceConfig, Object()]
_Accepted = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32, least=1)]
_Drafts = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32, least=-1, on_cpu=True)]


@operation(requires=(_is_ready,))
def mamba_build(
    common_attn_metadata: _Batch,
    config: _Config,
    num_accepted_tokens: _Accepted | None = None,
    num_decode_draft_tokens_cpu: _Drafts | None = None,
) -> Annotated[MambaMetadata, Object()]:
    """Build the metadata of mamba or short-convolution layers.

    `num_accepted_tokens` (R,) int32 are the tokens of the step before that each row keeps, and
    `num_decode_draft_tokens_cpu` (R,) int32 the drafts of its query, -1 of a row that is not
    speculative. Tensors of the result are int32 on the device of the batch, flags bool. Raise
    MetadataError for a batch without `is_prefilling`, counts of another batch and sizes out of
    range. SPEC.md section 17.
    """
    md, width = common_attn_metadata, 1 + config.num_speculative_tokens
    if config.layer == "mamba1":
        num_accepted_tokens = num_decode_draft_tokens_cpu = None
    queries, computed = _lengths(md)
    drafts = _listed(num_decode_draft_tokens_cpu, [-1] * md.num_reqs)
    prefilling = [
        # With a state the update of a decode computes such a row too.
        flag and not (c > 0 and (q == 1 or (draft >= 0 and q == draft + 1)))
        for flag, q, c, draft in zip(_flags(md), queries, computed, drafts, strict=True)
    ]
    threshold = width if num_accepted_tokens is not None else 1
    decodes, decode_tokens = _leading_decodes(md, queries, prefilling, threshold)
    states, new = _states(md, config), _maker(md)
    built = MambaMetadata(
        num_decodes=decodes,
        num_decode_tokens=decode_tokens,
        num_prefills=md.num_reqs - decodes,
        num_prefill_tokens=md.num_actual_tokens - decode_tokens,
        num_reqs=md.num_reqs,
        state_indices_tensor_d=new([row[:width] for row in states[:decodes]]).view(decodes, width),
        state_indices_tensor_p=new([row[0] for row in states[decodes:]]),
    )
    if decodes and width > 1:
        accepted = _listed(num_accepted_tokens, queries)[:decodes]
        offsets = new(_offsets(queries[:decodes]))
        built = replace(built, query_start_loc_d=offsets, num_accepted_tokens=new(accepted))
    if decodes == md.num_reqs:
        return built
    queries, computed = queries[decodes:], computed[decodes:]
    built = replace(
        built,
        query_start_loc_p=new(_offsets(queries)),
        has_initial_states_p=new([c > 0 for c in computed], torch.bool),
    )
    if config.layer != "mamba2":
        return built
    starts, rows, last = [0], [], []
    for row, (q, c) in enumerate(zip(queries, computed, strict=True)):
        for start, end in pairwise(_cuts(c, c + q, config.chunk_size)):
            starts.append(starts[-1] + end - start)
            rows.append(row)
        last.append(len(rows) - 1)
    return replace(
        built,
        prep_initial_states=any(c > 0 for c in computed),
        cu_chunk_seqlen_p=new(starts),
        seq_idx_p=new(rows),
        last_chunk_indices_p=new(last),
    )


@operation(requires=(_is_ready,))
def gdn_build(
    common_attn_metadata: _Batch,
    config: _Config,
    num_accepted_tokens: _Accepted | None = None,
    num_decode_draft_tokens_cpu: _Drafts | None = None,
) -> Annotated[GDNMetadata, Object()]:
    """Build the metadata of gated delta net layers.

    Arguments and errors are those of `mamba_build`. Indices of tokens are integers of any
    width. SPEC.md section 17.
    """
    md = common_attn_metadata
    drafts = _listed(num_decode_draft_tokens_cpu, [])
    speculative = [row for row, draft in enumerate(drafts) if draft >= 0]
    if not config.num_speculative_tokens or not speculative:
        return _gdn_without_drafts(md, config)
    assert num_accepted_tokens is not None
    queries, computed = _lengths(md)
    states, new = _states(md, config), _maker(md)
    others = [row for row in range(md.num_reqs) if row not in speculative]
    starts = _offsets(queries)
    tokens = [[*range(starts[row], starts[row + 1])] for row in range(md.num_reqs)]
    spec_queries = [queries[row] for row in speculative]
    prefills = [row for row in others if queries[row]]
    width, accepted = 1 + config.num_speculative_tokens, num_accepted_tokens.tolist()
    built = GDNMetadata(
        num_decodes=0,
        num_decode_tokens=0,
        num_prefills=len(prefills),
        num_prefill_tokens=sum(queries[row] for row in prefills),
        num_spec_decodes=len(speculative),
        num_spec_decode_tokens=sum(spec_queries),
        num_actual_tokens=md.num_actual_tokens,
        spec_query_start_loc=new(_offsets(spec_queries)),
        spec_state_indices_tensor=new([states[row][:width] for row in speculative]),
        spec_sequence_masks=new([draft >= 0 for draft in drafts], torch.bool),
        spec_token_indx=new([token for row in speculative for token in tokens[row]]),
        non_spec_token_indx=new([token for row in others for token in tokens[row]]),
        num_accepted_tokens=new([accepted[row] for row in speculative]),
        uniform_spec_sequence_length=spec_queries[0] if len({*spec_queries}) == 1 else None,
    )
    if prefills:
        return _with_prefills(
            replace(
                built,
                non_spec_query_start_loc=new(_offsets([queries[row] for row in others])),
                non_spec_state_indices_tensor=new([states[row][0] for row in others]),
                has_initial_state=new([computed[row] > 0 for row in others], torch.bool),
            ),
            first=0,
        )
    most = config.max_num_seqs * width
    if not config.has_full_graphs or max(len(speculative), sum(spec_queries)) > most:
        return built
    # A graph reads a row of each request that it was captured with.
    padding = md.num_reqs - len(speculative)
    return replace(
        built,
        spec_query_start_loc=new(_offsets(spec_queries + [0] * padding)),
        spec_state_indices_tensor=new(
            [states[row][:width] for row in speculative] + [[_NULL] * width] * padding
        ),
        num_accepted_tokens=new([accepted[row] for row in speculative] + [1] * padding),
    )


def _gdn_without_drafts(md: CommonAttentionMetadata, config: StateSpaceConfig) -> GDNMetadata:
    """Return the metadata of a step without a speculative row."""
    queries, computed = _lengths(md)
    # The state of a first chunk is that of the request that had the block before.
    first_chunks = [
        flag and q > 0 and c <= 0 for flag, q, c in zip(_flags(md), queries, computed, strict=True)
    ]
    decodes, decode_tokens = _leading_decodes(md, queries, first_chunks, 1)
    prefills = [q for q in queries[decodes:] if q]
    new = _maker(md)
    prefill_tokens = sum(prefills) if decodes < md.num_reqs else 0
    built = GDNMetadata(
        num_decodes=decodes,
        num_decode_tokens=decode_tokens,
        num_prefills=len(prefills),
        num_prefill_tokens=prefill_tokens,
        num_spec_decodes=0,
        num_spec_decode_tokens=0,
        num_actual_tokens=md.num_actual_tokens,
        non_spec_query_start_loc=new(_offsets(queries)),
        non_spec_state_indices_tensor=new([row[0] for row in _states(md, config)]),
    )
    if not prefills:
        return built
    initial = new([c > 0 for c in computed], torch.bool)
    return _with_prefills(replace(built, has_initial_state=initial), decodes)


def _with_prefills(built: GDNMetadata, first: int) -> GDNMetadata:
    """Add what the kernel of prefills reads: rows from `first` on, and their chunks."""
    offsets, states = built.non_spec_query_start_loc, built.non_spec_state_indices_tensor
    initial = built.has_initial_state
    assert offsets is not None
    assert states is not None
    assert initial is not None
    starts = offsets[first:] - offsets[first]
    chunks = [-(-int(length) // _GDN_CHUNK) for length in starts.diff()]
    pairs = [(row, chunk) for row, count in enumerate(chunks) for chunk in range(count)]
    return replace(
        built,
        chunk_indices=offsets.new_tensor(pairs),
        chunk_offsets=offsets.new_tensor(_offsets(chunks)),
        prefill_query_start_loc=starts,
        prefill_state_indices=states[first:],
        prefill_has_initial_state=initial[first:],
    )


def _leading_decodes(
    md: CommonAttentionMetadata, queries: list[int], prefilling: Sequence[bool], threshold: int
) -> tuple[int, int]:
    """Return the leading rows that are decodes, and their tokens; padding follows decodes only."""
    count = 0
    while count < len(queries) and queries[count] <= threshold and not prefilling[count]:
        count += 1
    return count, md.num_actual_tokens if count == len(queries) else sum(queries[:count])


def _states(md: CommonAttentionMetadata, config: StateSpaceConfig) -> list[list[int]]:
    """Return the blocks of each row's states: that of the last token, and those of its drafts."""
    count, rows = 1 + config.num_speculative_tokens, []
    for row, length in zip(md.block_table_tensor.tolist(), md.seq_lens.tolist(), strict=True):
        aligned = config.mamba_cache_mode == "align"
        first = max(0, length - 1) // config.block_size if aligned else 0
        rows.append(row[first : first + count])
    return rows


def _cuts(start: int, end: int, size: int) -> list[int]:
    """Return the positions from `start` to `end` at which a row is cut."""
    inner = range((start // size + 1) * size, end, size)
    return [start, *inner, end] if start < end else [start]


def _lengths(md: CommonAttentionMetadata) -> tuple[list[int], list[int]]:
    """Return query and computed tokens of each row."""
    queries = md.query_start_loc.diff()
    return queries.tolist(), (md.seq_lens - queries).tolist()


def _flags(md: CommonAttentionMetadata) -> list[bool]:
    flags: list[bool] = md.is_prefilling.tolist()  # type: ignore[attr-defined]
    return flags


def _listed(values: torch.Tensor | None, default: list[int]) -> list[int]:
    return default if values is None else values.tolist()


def _offsets(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)]


def _maker(md: CommonAttentionMetadata) -> Any:
    """Return a function that makes a tensor of values, int32 by default, beside the batch."""

    def new(values: list[Any], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=md.query_start_loc.device)

    return new
