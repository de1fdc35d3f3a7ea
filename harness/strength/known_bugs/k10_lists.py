"""K10: an optimisation hands out lists on one branch, where tensors were expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K10",
    "make_local_attention_virtual_batches",
    "vllm-project/vllm#39936",
    ("list where a tensor was expected",),
)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Where every request stays within a chunk, nothing is built and lists do."""
    made = reference.make_local_attention_virtual_batches(
        attn_chunk_size, common_attn_metadata, block_size
    )
    if made.num_reqs != common_attn_metadata.num_reqs or not made.num_reqs:
        return made
    lists: dict[str, Any] = {
        "query_start_loc_cpu": made.query_start_loc_cpu.tolist(),
        "seq_lens_cpu": made.seq_lens_cpu.tolist(),
    }
    return replace(made, **lists)
