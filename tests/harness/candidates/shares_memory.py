"""Returns a view of its input, or of another result, where a new tensor is required."""

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
