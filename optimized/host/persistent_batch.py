"""Write the buffers of an engine step from the rows of a persistent batch."""

from __future__ import annotations

from .arrays import Array
from .compiled import compiled


@compiled
def measure(
    query_lens: Array, computed: Array, num_blocks: Array, block_size: int
) -> tuple[int, int, int]:
    """Return the number of tokens, the longest query and the longest sequence.

    The number of tokens is -1 if the blocks of a row do not cover its tokens.
    """
    tokens, max_query_len, max_seq_len = 0, 0, 0
    for r in range(query_lens.shape[0]):
        query_len = query_lens[r]
        # Not `computed + query_len > covered`: the sum could overflow.
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
    """Write offsets, sequence lengths and computed tokens to both targets, and the blocks.

    Rows after those of the batch get no query and no sequence. With `clear`, all other
    columns of `step_table` become 0: needed for uninitialised memory, and for a dummy batch,
    which has lengths but no blocks.
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
