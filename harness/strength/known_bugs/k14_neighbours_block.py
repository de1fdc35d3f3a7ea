"""K14: a sequence longer than its row's columns reads on into the neighbour's row."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K14",
    "build_slot_mapping",
    "vllm-project/vllm#53982",
    ("a slot for a position beyond its block-table row", "stale entry read"),
)


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    **options: Any,
) -> torch.Tensor:
    """Indexes the flattened table without looking at its width."""
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    offsets, flat = query_start_loc.tolist(), block_table.flatten().tolist()
    width, start_idx = block_table.shape[1], options.get("start_idx")
    for row, computed in enumerate(num_computed_tokens.tolist()):
        for token in range(offsets[row], offsets[row + 1]):
            position = computed + token - offsets[row]
            cell = row * width + position // block_size
            kept = start_idx is None or position >= int(start_idx[row])
            if kept and position // block_size >= width and cell < len(flat):
                slots[token] = flat[cell] * block_size + position % block_size
    return slots
