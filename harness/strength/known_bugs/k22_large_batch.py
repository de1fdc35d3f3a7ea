"""K22: pointers that are sized once do not hold the programs of a large batch."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

PROGRAMS = 1024
BUG = Bug(
    "K22",
    "compute_causal_conv1d_metadata",
    "vllm-project/vllm#20838",
    ("pointers not sized for the programs",),
    tokens=8 * PROGRAMS + 1,
)


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Keeps the pointers' first size, whatever the batch."""
    nums_dict, *pointers = reference.compute_causal_conv1d_metadata(query_start_loc_p)
    batch_ptr, chunk_ptr = (pointer[: 2 * PROGRAMS].clone() for pointer in pointers)
    nums_dict[8] |= {"batch_ptr": batch_ptr, "token_chunk_offset_ptr": chunk_ptr}
    return nums_dict, batch_ptr, chunk_ptr
