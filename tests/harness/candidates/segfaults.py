"""Crashes with SIGSEGV if a request has seven query tokens."""

import ctypes

from attnproof import reference


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    if 7 in common_attn_metadata.query_start_loc_cpu.diff().tolist():
        ctypes.string_at(0)
    return counts
