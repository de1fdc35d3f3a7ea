"""K2: the rebuilt dataclass names the fields of its day and drops all that came later."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.interface import UBatchSlice
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K2",
    "_make_metadata_with_slice",
    "vllm-project/vllm#43966, vllm-project/vllm#49542",
    (
        "lost field",
        "the opposite answer",
        "CommonAttentionMetadata where the given SubclassedMetadata was expected",
    ),
)


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Right for the first eleven fields; the optional ones get their defaults."""
    child = reference._make_metadata_with_slice(ubatch_slice, attn_metadata)
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
