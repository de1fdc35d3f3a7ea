"""Returns copies where the specification gives the memory of an input."""

from attnproof import reference


def split_attn_metadata(ubatch_slices, common_attn_metadata):
    children = reference.split_attn_metadata(ubatch_slices, common_attn_metadata)
    for child in children:
        child.slot_mapping = child.slot_mapping.clone()
    return children
