"""K15: block id times block size is computed in 32 bits and wraps."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K15",
    "build_slot_mapping",
    "vllm-project/vllm#1486, vllm-project/vllm#50427",
    ("32-bit overflow",),
)


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    **options: Any,
) -> torch.Tensor:
    """Every slot passes through int32."""
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    return slots.copy_(slots.to(torch.int32))
