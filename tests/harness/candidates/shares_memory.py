"""Returns a view of its input where a new tensor is required."""

from attnproof import reference


def slice_query_start_locs(query_start_loc, request_slice):
    if request_slice.start == 0:
        reference.slice_query_start_locs(query_start_loc, request_slice)
        return query_start_loc[request_slice.start : request_slice.stop + 1]
    return reference.slice_query_start_locs(query_start_loc, request_slice)
