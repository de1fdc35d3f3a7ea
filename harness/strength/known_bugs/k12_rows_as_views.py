"""K12: two rows are swapped as views, so that the second copy reads what the first one wrote."""

from __future__ import annotations

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K12",
    "batch_sequence",
    "vllm-project/vllm#48419",
    ("both rows hold the same request",),
)


class PersistentBatch(reference.PersistentBatch):
    """Swaps the rows of a tensor as one swaps Python objects."""

    def swap_states(self, i: int, j: int) -> None:
        """Both rows end up with what row j held."""
        states = (self.block_table, self.num_blocks[:, None], self.num_computed_tokens[:, None])
        before = [state.clone() for state in states]
        super().swap_states(i, j)
        for state, rows in zip(states, before, strict=True):
            state.copy_(rows)
            state[i], state[j] = state[j], state[i]
