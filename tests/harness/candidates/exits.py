"""Ends the process if there are more than four requests."""

import os

from attnproof import reference


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    if common_attn_metadata.num_reqs > 4:
        os._exit(0)
    return counts
