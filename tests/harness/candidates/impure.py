"""Modifies its input, then returns the right result."""

from attnproof import reference


def build_slot_mapping(query_start_loc, num_computed_tokens, block_table, block_size, **options):
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    num_computed_tokens.add_(1)
    return slots
