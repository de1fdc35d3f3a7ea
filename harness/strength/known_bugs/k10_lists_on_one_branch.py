"""K10: a faster path for one request returns a list where a tensor is expected."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K10",
    "compute_causal_conv1d_metadata",
    "vllm-project/vllm#39936",
    ("list where a tensor was expected",),
)


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Needs no arithmetic for one request, and forgets the tensor too."""
    nums_dict, batch_ptr, chunk_ptr = reference.compute_causal_conv1d_metadata(query_start_loc_p)
    programs = nums_dict[8]
    if len(programs["nums"]) == 1:
        programs["offsetlist"] = list(range(programs["mlist_len"]))
    return nums_dict, batch_ptr, chunk_ptr
