"""Stand-in: one rank owns everything."""

from sglang.srt.runtime_context import get_parallel

CONTEXT = get_parallel()


def get_dcp_lens(lens, dcp_size, dcp_rank, start=None, interleave_size=1):
    return lens


def localize_dcp_indices(indices, dcp_size, dcp_rank, interleave_size=1):
    return indices
