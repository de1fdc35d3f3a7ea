"""K1: a slice that starts inside a request keeps the parent's computed tokens."""

from __future__ import annotations

from dataclasses import replace

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K1",
    "_make_metadata_with_slice",
    "vllm-project/vllm#56031",
    ("computed tokens of a continued request not advanced",),
)


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Right but for num_computed_tokens_cpu."""
    child = reference._make_metadata_with_slice(ubatch_slice, attn_metadata)
    parents = attn_metadata.num_computed_tokens_cpu[ubatch_slice.request_slice].clone()
    return replace(child, num_computed_tokens_cpu=parents)
