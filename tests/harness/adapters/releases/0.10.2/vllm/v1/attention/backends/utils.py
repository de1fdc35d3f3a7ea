"""Batches of a release that has no `require_uniform` and another name for a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

print("a line on standard output, as vLLM's log is")


@dataclass
class UbatchSlice:
    request_slice: slice
    token_slice: slice


@dataclass
class CommonAttentionMetadata:
    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    seq_lens_cpu: Any
    num_computed_tokens_cpu: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: bool = True
    unknown_to_us: str = "left alone"


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1):
    assert type(common_attn_metadata) is CommonAttentionMetadata
    return common_attn_metadata.num_reqs, 0, decode_threshold, 0


def make_local_attention_virtual_batches(attn_chunk_size, common_attn_metadata, block_size=0):
    return replace(common_attn_metadata, max_seq_len=attn_chunk_size, max_query_len=block_size)


def split_attn_metadata(ubatch_slices, common_attn_metadata):
    assert {type(one) for one in ubatch_slices} == {UbatchSlice}
    return [
        replace(common_attn_metadata, num_reqs=one.request_slice.stop - one.request_slice.start)
        for one in ubatch_slices
    ]


class AttentionMetadataBuilder:
    cudagraph_support = "NEVER"
