"""K11: requests are counted with graph padding and tokens without it."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K11",
    "split_decodes_and_prefills",
    "vllm-project/vllm#34187",
    ("padded tokens miscounted",),
)


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[int, int, int, int]:
    """Of a batch of decodes the tokens are those that query_start_loc ends with."""
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    if counts[1] or not counts[0]:
        return counts
    return (counts[0], 0, int(common_attn_metadata.query_start_loc_cpu[-1]), 0)
