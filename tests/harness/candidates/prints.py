"""Writes to standard output by its descriptor, not by Python's sys.stdout."""

import os

from attnproof import reference


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    if decode_threshold == 8:
        os.write(1, b"debugging\n")
    return counts
