"""Token positions with a mistake: 100 is the most that is counted of the cache."""

import torch


def token_positions(query_start_loc, seq_lens):
    """Return the position of each query token in its sequence, int64."""
    count, lengths = int(query_start_loc[-1]), query_start_loc.diff()
    shift = (seq_lens - lengths).clamp(max=100) - query_start_loc[:-1]
    rows = torch.repeat_interleave(lengths, output_size=count)
    return torch.arange(count) + shift.long()[rows]
