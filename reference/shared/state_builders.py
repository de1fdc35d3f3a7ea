"""Builders of state-space metadata that split a batch where its prefills begin (section 17)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Final

import torch

from ..definition.definition import operation
from ..definition.roles import Object
from ..interface.state_space import (
    BailingMetadata,
    LinearMetadata,
    MambaMetadata,
    StateSpaceConfig,
)
from .state_rows import (
    Accepted,
    BatchMetadata,
    BatchRows,
    Config,
    Drafts,
    is_ready,
    listed,
    offsets,
)
from .state_space import compute_mamba_prefill_checkpoints

__all__ = ["bailing_build", "linear_build", "mamba_build"]

_PAD: Final = -1
"""State of padding that kernels of linear attention leave out."""


@operation(requires=(is_ready,))
def mamba_build(
    common_attn_metadata: BatchMetadata,
    config: Config,
    num_accepted_tokens: Accepted | None = None,
    num_decode_draft_tokens_cpu: Drafts | None = None,
) -> Annotated[MambaMetadata, Object()]:
    """Build the metadata of mamba or short-convolution layers.

    `num_accepted_tokens` (R,) int32 are the tokens of the step before that each row keeps, and
    `num_decode_draft_tokens_cpu` (R,) int32 the drafts of its query, -1 of a row that is not
    speculative. Tensors of the result are int32 on the device of the batch, flags bool. Raise
    MetadataError for a batch without `is_prefilling`, counts of another batch and sizes out of
    range. SPEC.md section 17.
    """
    rows = BatchRows(common_attn_metadata, config)
    if config.layer == "mamba1":
        num_accepted_tokens = num_decode_draft_tokens_cpu = None
    num_reqs, width = len(rows.queries), rows.width
    prompts = rows.prompts(listed(num_decode_draft_tokens_cpu, [-1] * num_reqs))
    split = rows.split(prompts, width if num_accepted_tokens is not None else 1)
    decodes = split["num_decodes"]
    decode_states = [row[:width] for row in rows.states[:decodes]]
    built = MambaMetadata(
        **split,
        num_reqs=num_reqs,
        state_indices_tensor_d=rows.new(decode_states).view(decodes, width),
        state_indices_tensor_p=rows.new([row[0] for row in rows.states[decodes:]]),
    )
    if decodes and width > 1:
        built = replace(
            built,
            query_start_loc_d=rows.new(offsets(rows.queries[:decodes])),
            num_accepted_tokens=rows.new(listed(num_accepted_tokens, rows.queries)[:decodes]),
        )
    if decodes < num_reqs:
        initial = [c > 0 for c in rows.computed[decodes:]]
        built = replace(
            built,
            query_start_loc_p=rows.new(offsets(rows.queries[decodes:])),
            has_initial_states_p=rows.new(initial, torch.bool),
        )
        if config.layer == "mamba2":
            return _with_chunks(built, rows, config)
    return built


def _with_chunks(built: MambaMetadata, rows: BatchRows, config: StateSpaceConfig) -> MambaMetadata:
    """Add where the scan of mamba2 cuts the prefills."""
    queries, computed = rows.queries[built.num_decodes :], rows.computed[built.num_decodes :]
    checkpoints = _checkpoints(queries, computed, config)
    starts, last, ends = [0], [], []
    owners: list[int] = []
    for row, (q, c, offset) in enumerate(zip(queries, computed, checkpoints, strict=True)):
        ends.append(0)
        for start, end in pairwise(_cuts(c, c + q, config.chunk_size, c + offset)):
            if offset and end == c + offset:
                ends[row] = len(owners)
            starts.append(starts[-1] + end - start)
            owners.append(row)
        last.append(len(owners) - 1)
    return replace(
        built,
        prep_initial_states=any(c > 0 for c in computed),
        cu_chunk_seqlen_p=rows.new(starts),
        seq_idx_p=rows.new(owners),
        last_chunk_indices_p=rows.new(last),
        checkpoint_chunk_idx=rows.new(ends, torch.int64) if any(checkpoints) else None,
    )


def _checkpoints(queries: list[int], computed: list[int], config: StateSpaceConfig) -> list[int]:
    """Return the offset of each row's exported state in its query, 0 without one."""
    if config.mamba_cache_mode != "align" or config.checkpoint_alignment is None:
        return [0] * len(queries)
    found, _ = compute_mamba_prefill_checkpoints(
        [q + c for q, c in zip(queries, computed, strict=True)],
        queries,
        config.hash_block_size,
        config.block_size,
        config.checkpoint_alignment,
        False,
        config.cache_hit_alignment_tokens,
    )
    return found


def _cuts(start: int, end: int, size: int, checkpoint: int) -> list[int]:
    """Return the positions from `start` to `end` at which a row is cut."""
    inner = {*range((start // size + 1) * size, end, size), checkpoint}
    return sorted({start, end, *inner})


@operation(requires=(is_ready,))
def linear_build(
    common_attn_metadata: BatchMetadata, config: Config
) -> Annotated[LinearMetadata, Object()]:
    """Build the metadata of lightning attention layers.

    Errors and dtypes are those of `mamba_build`. SPEC.md section 17.
    """
    rows = BatchRows(common_attn_metadata, config)
    return LinearMetadata(
        **rows.split(rows.first_chunks(), 1),
        query_start_loc=common_attn_metadata.query_start_loc,
        seq_lens=common_attn_metadata.seq_lens,
        state_indices_tensor=rows.new([row[0] for row in rows.states]),
    )


@operation(requires=(is_ready,))
def bailing_build(
    common_attn_metadata: BatchMetadata,
    config: Config,
    num_accepted_tokens: Accepted | None = None,
    num_decode_draft_tokens_cpu: Drafts | None = None,
) -> Annotated[BailingMetadata, Object()]:
    """Build the metadata of lightning attention layers whose decodes may have drafts.

    Arguments, errors and dtypes are those of `mamba_build`. SPEC.md section 17.
    """
    rows = BatchRows(common_attn_metadata, config)
    num_reqs = len(rows.queries)
    if not config.num_speculative_tokens:
        num_accepted_tokens = None
    drafts = listed(num_decode_draft_tokens_cpu, [-1] * num_reqs)
    threshold = rows.width if num_accepted_tokens is not None else 1
    split = rows.split(rows.prompts(drafts), threshold)
    decodes = split["num_decodes"]
    states = [row[: rows.width] for row in rows.states]
    if decodes == num_reqs <= config.max_num_seqs and config.has_full_graphs:
        states = [
            state if q + c else [_PAD] * rows.width
            for state, q, c in zip(states, rows.queries, rows.computed, strict=True)
        ]
    firsts = [state[0] for state in states]
    built = BailingMetadata(
        **split,
        query_start_loc=common_attn_metadata.query_start_loc,
        seq_lens=common_attn_metadata.seq_lens,
        state_indices_tensor=rows.new(firsts),
        state_indices_tensor_d=rows.new(firsts[:decodes]),
        state_indices_tensor_p=rows.new(firsts[decodes:]),
    )
    if num_accepted_tokens is None:
        return built
    return replace(
        built,
        state_indices_tensor_d=rows.new(states[:decodes]).view(decodes, rows.width),
        query_start_loc_d=rows.new(offsets(rows.queries[:decodes])),
        num_accepted_tokens=rows.new(num_accepted_tokens.tolist()[:decodes]),
    )
