"""Mistakes in block tables of kernels (SPEC.md sections 11 and 12)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation


@mutation(
    "mamba_get_block_table_tensor",
    diagnoses=("result", "stale entry read", "wrong order", "off by one"),
    both=("invariants",),
)
def state_of_the_next_block(
    take: Any, table: Any, seq_lens: Any, spec: Any, mamba_cache_mode: str
) -> Any:
    """The state of a sequence that fills its last block is read from the block after it."""
    states = take(table, seq_lens, spec, mamba_cache_mode)
    if mamba_cache_mode == "none":
        return states
    columns = (seq_lens.long() // spec.block_size)[:, None] + torch.arange(states.shape[1])
    return table.gather(1, columns.clamp(max=max(0, table.shape[1] - 1)))
