"""Mistakes in block tables of kernels (SPEC.md sections 11 and 12)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation


@mutation(
    "map_to_kernel_block_table",
    diagnoses=("padding becomes a block",),
    both=("invariants",),
)
def padding_mapped_like_a_block(
    map_table: Any,
    table: Any,
    block_size: int,
    kernel_block_size: int,
    stride: int | None = None,
    out: Any = None,
) -> Any:
    """The id -1 of padding is multiplied like a block's: it names parts of other blocks."""
    result = map_table(table, block_size, kernel_block_size, stride, out)
    if result is table:
        return result
    parts = block_size // kernel_block_size
    first = table.long() * (stride or parts)
    ids = (first[:, :, None] + torch.arange(parts, device=table.device)).flatten(1)
    return result.copy_(torch.where((table < 0).repeat_interleave(parts, 1), ids, result))


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


@mutation("mamba_get_block_table_tensor", diagnoses=("off by one token",), both=("invariants",))
def state_by_a_rounded_reciprocal(
    take: Any, table: Any, seq_lens: Any, spec: Any, mamba_cache_mode: str
) -> Any:
    """A position is multiplied by the block size's reciprocal, which a double rounds."""
    states = take(table, seq_lens, spec, mamba_cache_mode)
    if mamba_cache_mode == "none":
        return states
    first = ((seq_lens - 1).clamp(min=0).double() * (1.0 / spec.block_size)).long()
    columns = first[:, None] + torch.arange(states.shape[1])
    return table.gather(1, columns.clamp(max=max(0, table.shape[1] - 1)))
