"""Illegal memory access in a kernel, as PyTorch reports it: no later launch works."""

from __future__ import annotations

from attnproof import reference


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    if decode_threshold == 5:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nLater calls fail")
    return reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
