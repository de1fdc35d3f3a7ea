"""Stand-in: slots one by one, as a request's only page."""

from sglang.srt.utils import is_hip

WITH_PLATFORM = bool(is_hip())


def alloc_extend_naive(prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size, device):
    assert str(device) == "cpu"
    out_indices.copy_(
        free_pages[0] * page_size + out_indices.new_ones(len(out_indices)).cumsum(0) - 1
    )


def alloc_decode_naive(seq_lens, last_loc, free_pages, out_indices, page_size, num_new_pages):
    out_indices.fill_(num_new_pages)
