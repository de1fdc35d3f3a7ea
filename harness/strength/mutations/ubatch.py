"""Mistakes in slices of a batch (SPEC.md section 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation
from attnproof.harness.strength.mutations.lengths import with_lengths
from attnproof.reference.shared import CommonAttentionMetadata

_SLICE = "_make_metadata_with_slice"


@mutation(
    _SLICE,
    "K1",
    source="vllm-project/vllm#56031",
    diagnoses=("computed tokens of a continued request not advanced",),
    both=("consumer", "invariants"),
)
def computed_tokens(make_slice: Any, ubatch_slice: Any, attn_metadata: Any) -> Any:
    """A slice that starts inside a request keeps the parent's computed tokens."""
    child = make_slice(ubatch_slice, attn_metadata)
    parents = attn_metadata.num_computed_tokens_cpu[ubatch_slice.request_slice].clone()
    return replace(child, num_computed_tokens_cpu=parents)


@mutation(
    _SLICE,
    "K2",
    source="vllm-project/vllm#43966, vllm-project/vllm#49542",
    diagnoses=(
        "lost field",
        "the opposite answer",
        "CommonAttentionMetadata where the given SubclassedMetadata was expected",
        "CommonAttentionMetadata where the given CommonAttentionMetadataV32 was expected",
    ),
    both=("consumer",),
    boundary="all optional fields (K2), slice 0",
)
def dropped_fields(make_slice: Any, ubatch_slice: Any, attn_metadata: Any) -> Any:
    """A slice is rebuilt from the first eleven fields; the optional ones get their defaults."""
    child = make_slice(ubatch_slice, attn_metadata)
    return CommonAttentionMetadata(
        query_start_loc=child.query_start_loc,
        query_start_loc_cpu=child.query_start_loc_cpu,
        seq_lens=child.seq_lens,
        seq_lens_cpu=child.seq_lens_cpu,
        num_computed_tokens_cpu=child.num_computed_tokens_cpu,
        num_reqs=child.num_reqs,
        num_actual_tokens=child.num_actual_tokens,
        max_query_len=child.max_query_len,
        max_seq_len=child.max_seq_len,
        block_table_tensor=child.block_table_tensor,
        slot_mapping=child.slot_mapping,
    )


@mutation(
    _SLICE, "K3", source="erratum E3", diagnoses=("not rebased",), both=("consumer", "invariants")
)
def absolute_offsets(make_slice: Any, ubatch_slice: Any, attn_metadata: Any) -> Any:
    """A slice cut at both ends subtracts an absolute token index from a rebased offset."""
    child = make_slice(ubatch_slice, attn_metadata)
    first, last = ubatch_slice.request_slice.start, ubatch_slice.request_slice.stop
    t0, t1 = ubatch_slice.token_slice.start, ubatch_slice.token_slice.stop
    offsets = attn_metadata.query_start_loc_cpu
    cut_tail = t1 < int(offsets[last])
    rebased = int(offsets[last]) - t0
    if not (cut_tail and t0 > int(offsets[first])):
        return child
    end = rebased - max(0, rebased - t1)
    seq_lens = child.seq_lens.clone()
    seq_lens[-1] += end - int(child.query_start_loc[-1])
    return replace(
        child,
        query_start_loc=_with_end(child.query_start_loc, end),
        query_start_loc_cpu=_with_end(child.query_start_loc_cpu, end),
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.cpu(),
    )


def _with_end(offsets: torch.Tensor, end: int) -> torch.Tensor:
    changed = offsets.clone()
    changed[-1] = end
    return changed


@mutation(_SLICE, diagnoses=("sees ",), both=("consumer",), examined="both")
def rows_from_the_first(make_slice: Any, ubatch_slice: Any, attn_metadata: Any) -> Any:
    """Each slice gets the block-table rows that begin at the batch's first request."""
    child = make_slice(ubatch_slice, attn_metadata)
    table = attn_metadata.block_table_tensor[: child.num_reqs]
    return replace(child, block_table_tensor=table)


@mutation(
    "split_attn_metadata",
    diagnoses=(
        "moves tokens to other positions",
        "sees keys of its own future",
    ),
    both=("consumer", "invariants"),
    examined="both",
)
def absolute_lengths(split: Any, ubatch_slices: Any, common_attn_metadata: Any) -> Any:
    """A request that loses its tail to the next slice keeps its whole length."""
    children = split(ubatch_slices, common_attn_metadata)
    lengths = common_attn_metadata.seq_lens_cpu
    return [
        with_lengths(child, lengths[one.request_slice].clone())
        for one, child in zip(ubatch_slices, children, strict=True)
    ]
