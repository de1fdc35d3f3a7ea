"""Returns a view of its input, or of another result, where a new tensor is required."""

from dataclasses import replace

import torch

from attnproof import reference


def slice_query_start_locs(query_start_loc, request_slice):
    if request_slice.start == 0:
        reference.slice_query_start_locs(query_start_loc, request_slice)
        return query_start_loc[request_slice.start : request_slice.stop + 1]
    return reference.slice_query_start_locs(query_start_loc, request_slice)


def get_batch_indices_positions(append_indptr, seq_lens, nnz):
    rows, positions = reference.get_batch_indices_positions(append_indptr, seq_lens, nnz)
    return (rows, rows) if torch.equal(rows, positions) else (rows, positions)


def make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata):
    md = common_attn_metadata
    made = reference.make_kv_sharing_fast_prefill_common_attn_metadata(md)
    if made.query_start_loc_cpu.tolist() != md.query_start_loc_cpu.tolist():
        return made
    offsets = {"query_start_loc": md.query_start_loc, "query_start_loc_cpu": md.query_start_loc_cpu}
    return replace(made, **offsets)


def split_attn_metadata(ubatch_slices, common_attn_metadata):
    children = reference.split_attn_metadata(ubatch_slices, common_attn_metadata)
    for child in children:
        for name in ("query_start_loc", "seq_lens"):
            whole = getattr(common_attn_metadata, name)
            if getattr(child, name).tolist() == whole.tolist():
                setattr(child, name, whole)
    return children
