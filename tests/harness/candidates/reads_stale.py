"""Counts on what lies in a block-table column that no sequence has."""

import torch

import reference


def build_slot_mapping(
    query_start_loc, num_computed_tokens, block_table, block_size, **options
):
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    if block_table.numel() and int(block_table.min()) < -1:
        return torch.full_like(slots, -1)
    return slots
