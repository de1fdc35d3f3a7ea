"""Right values in wrong types: a numpy scalar, a list, a dropped field."""

from types import SimpleNamespace

import numpy as np

from attnproof import reference


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    counts = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    return (*counts[:3], np.int64(counts[3]))


def slice_query_start_locs(query_start_loc, request_slice):
    return reference.slice_query_start_locs(query_start_loc, request_slice).tolist()


def _make_metadata_with_slice(ubatch_slice, attn_metadata):
    fields = vars(reference._make_metadata_with_slice(ubatch_slice, attn_metadata))
    return SimpleNamespace(**{name: fields[name] for name in fields if name != "causal"})
