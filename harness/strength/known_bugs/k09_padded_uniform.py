"""K9: zero-length padded rows make a uniform batch non-uniform."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K9",
    "split_decodes_and_prefills",
    "vllm-project/vllm#29644",
    ("zero-length (padded) rows miscounted",),
)


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[int, int, int, int]:
    """Ends the uniform run at the first row of another length, padded or not."""
    right = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    lengths = common_attn_metadata.query_start_loc_cpu.diff().tolist()
    shortcut = common_attn_metadata.max_query_len <= decode_threshold == 1
    if not require_uniform or shortcut or not lengths or lengths[0] > decode_threshold:
        return right
    run = next((row for row, q in enumerate(lengths) if q != lengths[0]), len(lengths))
    if run == len(lengths):
        return right
    tokens = int(common_attn_metadata.query_start_loc_cpu[run])
    return run, len(lengths) - run, tokens, common_attn_metadata.num_actual_tokens - tokens
