"""Modifies its input, then returns the right result; or restores the input first."""

from attnproof import reference


def build_slot_mapping(query_start_loc, num_computed_tokens, block_table, block_size, **options):
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    num_computed_tokens.add_(1)
    return slots


def split_decodes_and_prefills(common_attn_metadata, *options):
    common_attn_metadata.query_start_loc.neg_()
    common_attn_metadata.query_start_loc.neg_()
    return reference.split_decodes_and_prefills(common_attn_metadata, *options)
