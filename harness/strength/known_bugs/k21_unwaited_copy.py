"""K21: offsets are copied to the host without a wait, and read at once."""

from __future__ import annotations

from dataclasses import replace

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K21",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "vllm-project/vllm#51738",
    ("reads a copy to the host before it has arrived",),
)


def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: CommonAttentionMetadata,
) -> CommonAttentionMetadata:
    """Takes a copy that was asked for to be there; on a GPU it is, as long as something waits."""
    made = reference.make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata)
    if made is common_attn_metadata:
        return made
    starts = made.query_start_loc.to("cpu", non_blocking=True)
    return replace(
        made,
        query_start_loc_cpu=starts.to(made.query_start_loc_cpu.dtype),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(starts.diff().tolist(), default=0),
    )
