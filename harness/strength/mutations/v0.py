"""Mistakes in first-generation (V0) metadata and graph state (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.interface import AttentionType

_BUILDER, _STATE = "CommonMetadataBuilder", "CommonAttentionState"


@mutation(
    _BUILDER,
    "K26",
    source="vllm-project/vllm#9532",
    diagnoses=("block table shorter than its sequence",),
    both=("consumer",),
)
def prefix_blocks_only(builder: Any) -> Any:
    """After a prefix-cache hit the block table of a chunk ends with the prefix."""

    class CommonMetadataBuilder(builder):
        def _add_seq_group(self, inter_data: Any, chunked_prefill_enabled: bool) -> None:
            super()._add_seq_group(inter_data, chunked_prefill_enabled)
            if inter_data.prefix_cache_hit:
                computed = inter_data.context_lens[0] // self.block_size
                self.block_tables[-1] = self.block_tables[-1][:computed]

    return CommonMetadataBuilder


@mutation(_BUILDER, diagnoses=("sees ",), both=("consumer",), examined="both")
def first_blocks_of_a_window(builder: Any) -> Any:
    """A decode with a sliding window reads the first blocks of its sequence, not the last."""

    class CommonMetadataBuilder(builder):
        def build(self, *args: Any) -> Any:
            made, row = super().build(*args), 0
            for group in self.input_builder.inter_data_list:
                for seq_id, window in zip(
                    group.seq_ids, group.curr_sliding_window_blocks, strict=True
                ):
                    if window and not group.is_prompt:
                        blocks = group.block_tables[seq_id][:window]
                        ids = torch.tensor([int(block) for block in blocks], dtype=torch.int32)
                        made.block_tables[row, : len(blocks)] = ids
                    row += 1
            return made

    return CommonMetadataBuilder


@mutation(
    _STATE,
    "K28",
    source="erratum E12",
    diagnoses=("state stays in capturing mode",),
    both=("invariants",),
)
def capturing_for_ever(state: Any) -> Any:
    """An exception inside a capture leaves the state in capturing mode."""

    class CommonAttentionState(state):
        @contextmanager
        def graph_capture(self, max_batch_size: int) -> Iterator[None]:
            self._is_graph_capturing = False
            capturing = dict(vars(self))
            try:
                with super().graph_capture(max_batch_size):
                    capturing = dict(vars(self))
                    yield
            except Exception:
                self.__dict__.update(capturing)
                raise

    return CommonAttentionState


@mutation("get_seq_len_block_table_args", diagnoses=("lost field",), both=None)
def tables_without_columns_are_none(
    take: Any, attn_metadata: Any, is_prompt: bool, attn_type: str
) -> Any:
    """Block tables without a column, those of new prompts, are returned as None."""
    lengths, longest, tables = take(attn_metadata, is_prompt, attn_type)
    without = attn_type == AttentionType.DECODER and tables is not None and not tables.numel()
    return lengths, longest, None if without else tables


_asked: list[Any] = []
"""Metadata of the last call and the answer; held, so that no other object gets its identity."""


@mutation(
    "is_all_encoder_attn_metadata_set",
    diagnoses=("depends on the call before",),
    one=("determinism",),
    both=(),
    examples=90,
)
def answer_kept_for_an_object(is_set: Any, attn_metadata: Any) -> Any:
    """The answer is kept for further calls with the same object, whose fields may change."""
    answer = is_set(attn_metadata)
    if not _asked or _asked[0] is not attn_metadata:
        _asked[:] = attn_metadata, answer
    return _asked[1]


@mutation(
    "get_num_prefill_decode_query_kv_tokens",
    diagnoses=("num_decode_tokens taken",),
    both=("invariants",),
)
def no_encoder_tokens_taken_for_unknown(count: Any, attn_metadata: Any, attn_type: str) -> Any:
    """A count of 0 encoder tokens, as in a graph capture, is replaced by the lengths' sum."""
    queries, keys, decodes = count(attn_metadata, attn_type)
    lengths = getattr(attn_metadata, "encoder_seq_lens", None) or ()
    if attn_type == AttentionType.ENCODER:
        return keys or sum(lengths), keys or sum(lengths), decodes
    if attn_type == AttentionType.ENCODER_DECODER:
        return queries, keys or sum(lengths), decodes
    return queries, keys, decodes


@mutation(
    "get_seq_len_block_table_args",
    diagnoses=("max_prefill_seq_len taken",),
    both=("invariants",),
)
def longest_encoder_in_place_of_the_bound(
    pick: Any, attn_metadata: Any, is_prompt: bool, attn_type: str
) -> Any:
    """Decodes get the longest encoder of the step, not the bound of a captured graph."""
    lengths, longest, tables = pick(attn_metadata, is_prompt, attn_type)
    encoders = getattr(attn_metadata, "encoder_seq_lens", None)
    if attn_type == AttentionType.ENCODER_DECODER and not is_prompt and encoders:
        longest = max(encoders)
    return lengths, longest, tables
