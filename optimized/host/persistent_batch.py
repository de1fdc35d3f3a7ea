"""The rows of a step, from the state that a persistent batch keeps."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def measure(
    query_lens: Array, computed: Array, num_blocks: Array, block_size: int
) -> tuple[int, int, int]:
    """Tokens in all, longest query, longest sequence; -1 for tokens if a row is not covered."""
    tokens, max_query_len, max_seq_len = 0, 0, 0
    for r in range(query_lens.shape[0]):
        query_len = query_lens[r]
        # not computed + query_len > covered: a sum could wrap
        if query_len < 0 or query_len > num_blocks[r] * block_size - computed[r]:
            return -1, 0, 0
        seq_len = computed[r] + query_len
        tokens += query_len
        max_query_len = max(max_query_len, query_len)
        max_seq_len = max(max_seq_len, seq_len)
    return tokens, max_query_len, max_seq_len


@compiled
def fill_rows(
    query_lens: Array,
    computed: Array,
    num_blocks: Array,
    table: Array,
    mirrors: tuple[Array, Array, Array],
    twins: tuple[Array, Array, Array],
    step_table: Array,
    clear: bool,
) -> None:
    """Write offsets, sequence lengths, computed tokens, each twice, and the live blocks.

    Rows behind the batch's get no query and no sequence. `clear` writes 0 to all other
    columns, where the memory of `step_table` has never been written or a dummy batch
    has lengths but no blocks.
    """
    live = query_lens.shape[0]
    for starts, seq_lens, done in (mirrors, twins):
        end = starts[0] = 0
        for r in range(live):
            end += query_lens[r]
            starts[r + 1] = end
            done[r] = computed[r]
            seq_lens[r] = computed[r] + query_lens[r]
        for r in range(live, seq_lens.shape[0]):
            starts[r + 1] = end
            done[r] = 0
            seq_lens[r] = 0
    for r in range(step_table.shape[0]):
        held = num_blocks[r] if r < live else 0
        for column in range(held):
            step_table[r, column] = table[r, column]
        if clear:
            for column in range(held, step_table.shape[1]):
                step_table[r, column] = 0
