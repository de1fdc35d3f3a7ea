"""Token positions, vectorised."""

import torch


def token_positions(query_start_loc, seq_lens):
    """Return the position of each query token in its sequence, int64."""
    count = int(query_start_loc[-1])
    shift = (seq_lens - query_start_loc[1:]).long()  # position of a row's token less its index
    rows = torch.repeat_interleave(query_start_loc.diff(), output_size=count)
    return torch.arange(count) + shift[rows]
