"""Token positions of a batch: an operation whose arguments and result all have a usual role."""

import torch

from attnproof.define import Offsets, Positions, SeqLens, operation


@operation(independent=True)  # of a row alone: more relations are checked
def token_positions(query_start_loc: Offsets, seq_lens: SeqLens) -> Positions:
    """Return the position of each query token in its sequence, int64."""
    offsets, lengths = query_start_loc.tolist(), seq_lens.tolist()
    positions: list[int] = []
    for row, length in enumerate(lengths):
        queries = offsets[row + 1] - offsets[row]
        positions += range(length - queries, length)
    return torch.tensor(positions, dtype=torch.int64)
