"""Mistakes in the split between decodes and prefills and in causal convolution."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation


@mutation(
    "split_decodes_and_prefills",
    "K13",
    source="vllm-project/vllm#41841",
    diagnoses=(
        "zero-length (padded) rows miscounted",
        "padded tokens miscounted",
        "depends on stale entries",
    ),
    both=("invariants",),
)
def earlier_rows(
    split: Any, common_attn_metadata: Any, decode_threshold: int = 1, *args: Any, **kw: Any
) -> Any:
    """A stale row behind the batch makes a batch of decodes a mixed one."""
    counts = split(common_attn_metadata, decode_threshold, *args, **kw)
    offsets = common_attn_metadata.query_start_loc_cpu
    # A view of the caller's buffer with one row more than the batch, if there is one.
    rows = offsets.untyped_storage().nbytes() // offsets.itemsize - offsets.storage_offset()
    if rows <= len(offsets) * offsets.stride(0):
        return counts
    buffer = offsets.as_strided((len(offsets) + 1,), offsets.stride())
    live = int((offsets.diff() > 0).sum())
    if int(buffer.diff()[-1]) <= decode_threshold or counts[1] or live == counts[0]:
        return counts
    tokens = int(offsets[-1])
    return (live, counts[0] - live, tokens, counts[2] - tokens)


@mutation(
    "CommonAttentionMetadata",
    diagnoses=("grows in the caller's buffer",),
    one=("invariants",),
    both=("invariants",),
    examples=90,
)
def padding_in_the_callers_buffer(metadata: Any) -> Any:
    """Slots grow in the caller's own buffer if the entries behind them are -1 already."""

    class CommonAttentionMetadata(metadata):
        def padded(self, num_tokens: int, num_reqs: int) -> Any:
            padded = super().padded(num_tokens, num_reqs)
            buffer = self.slot_mapping[:num_tokens]
            if num_tokens > self.num_actual_tokens and torch.equal(buffer, padded.slot_mapping):
                padded.slot_mapping = buffer
            return padded

    return CommonAttentionMetadata
