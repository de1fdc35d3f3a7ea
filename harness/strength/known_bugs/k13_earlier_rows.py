"""K13: what earlier requests left behind the batch turns decodes into a mixed batch."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K13",
    "split_decodes_and_prefills",
    "vllm-project/vllm#41841",
    (
        "zero-length (padded) rows miscounted",
        "padded tokens miscounted",
        "depends on stale entries",
    ),
)


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[int, int, int, int]:
    """Looks for the longest query in one row more of the caller's buffer than the batch has."""
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    offsets = common_attn_metadata.query_start_loc_cpu
    buffer = offsets.as_strided((len(offsets) + 1,), offsets.stride())
    live = int((offsets.diff() > 0).sum())
    if int(buffer.diff()[-1]) <= decode_threshold or counts[1] or live == counts[0]:
        return counts
    tokens = int(offsets[-1])
    return (live, counts[0] - live, tokens, counts[2] - tokens)
