"""K19: each kernel tile repeats the first one's values."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

TILE = 1024
BUG = Bug(
    "K19",
    "build_slot_mapping",
    "vllm-project/vllm#15908",
    ("repeats the values of an earlier tile",),
    tokens=TILE + 1,
)


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    **options: Any,
) -> torch.Tensor:
    """Forgets to add the tile's start to the token index."""
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    tokens = int(query_start_loc[-1])
    for start in range(TILE, tokens, TILE):
        stop = min(start + TILE, tokens)
        slots[start:stop] = slots[: stop - start].clone()
    return slots
