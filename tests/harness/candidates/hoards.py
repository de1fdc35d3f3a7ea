"""Allocates more memory than it may have."""

from attnproof import reference

KEPT = []


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    if require_uniform:
        KEPT.append(bytearray(8 << 30))
    return counts
