"""Compiles for two seconds at its first call in a process."""

import time
from functools import cache

from attnproof import reference


@cache
def compile_it():
    time.sleep(2)


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    compile_it()
    return reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
