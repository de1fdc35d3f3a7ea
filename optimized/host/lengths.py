"""Whether the CPU mirrors of a batch fit together; the shared checks say which one does not."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def lengths_fit(
    offsets: Array,
    seq_lens: Array,
    computed: Array,
    num_actual_tokens: int,
    max_query_len: int,
    max_seq_len: int,
) -> bool:
    """True if `check_queries` and `check_sequences` would pass."""
    num_reqs = seq_lens.shape[0]
    if offsets[0] != 0 or offsets[num_reqs] > num_actual_tokens:
        return False
    for r in range(num_reqs):
        query_len = offsets[r + 1] - offsets[r]
        if not 0 <= query_len <= max_query_len or not query_len <= seq_lens[r] <= max_seq_len:
            return False
        if computed[r] != seq_lens[r] - query_len:
            return False
    return True
