"""K20, erratum E8: a dummy run has no logits indices, and an assertion wants them."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K20",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "vllm-project/vllm#28537",
    ("raises AssertionError on good input",),
)


def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: CommonAttentionMetadata,
) -> CommonAttentionMetadata:
    """Takes it that only decodes come without logits indices."""
    made = reference.make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata)
    if common_attn_metadata.max_query_len != 1:
        assert common_attn_metadata.logits_indices_padded is not None
    return made
