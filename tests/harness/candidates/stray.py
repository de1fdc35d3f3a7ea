"""Writes one word beyond the given buffer, or beyond its own."""

import torch

from attnproof import reference


def build_slot_mapping(query_start_loc, num_computed_tokens, block_table, block_size, **options):
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    if options.get("out") is None:
        own = torch.empty(len(slots), dtype=torch.int64)
        own.copy_(slots)
        slots = own
    if len(slots):
        beyond = slots.as_strided((1,), (1,), slots.storage_offset() + len(slots) * slots.stride(0))
        if beyond.storage_offset() < slots.untyped_storage().nbytes() // 8:
            beyond.fill_(99)
    return slots
