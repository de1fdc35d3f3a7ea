"""K18: padded tokens go on in the last request's row and read the ids that an earlier one left."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K18",
    "build_slot_mapping",
    "vllm-project/vllm#39589, vllm-project/vllm#42494",
    ("a slot for an entry that must have none", "stale entry read"),
)


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    **options: Any,
) -> torch.Tensor:
    """Takes what lies behind the last token for more tokens of the last request."""
    slots = reference.build_slot_mapping(
        query_start_loc, num_computed_tokens, block_table, block_size, **options
    )
    tokens, rows = int(query_start_loc[-1]), len(num_computed_tokens)
    if not rows:
        return slots
    first = int(query_start_loc[-2])
    for token in range(tokens, len(slots)):
        position = int(num_computed_tokens[-1]) + token - first
        column = position // block_size
        if column < block_table.shape[1]:
            slots[token] = int(block_table[-1, column]) * block_size + position % block_size
    return slots
