"""Relies on a block-table column beyond every sequence."""

import torch

from attnproof import reference


def build_slot_mapping(query_start_loc, num_computed_tokens, block_table, block_size, **options):
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    if block_table.numel() and (block_table[:, -1] == 0).all() and block_table.shape[1] > 1:
        return torch.full_like(slots, -1)
    return slots
