"""Mistakes in slots and lengths of context parallelism (SPEC.md section 10)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_SLOTS = "build_slot_mapping"
_RANKS = "rank_slot_mapping"
_LENGTHS = "prepare_dcp_local_seq_lens"


@mutation(
    _RANKS,
    part=_SLOTS,
    diagnoses=("off by one token", "wrong slot"),
    both=("consumer", "invariants"),
)
def interleave_forgotten_within_a_block(
    build: Any,
    query_start_loc: Any,
    num_computed_tokens: Any,
    block_table: Any,
    block_size: int,
    *,
    cp_size: int,
    cp_interleave: int,
    **kw: Any,
) -> Any:
    """A token's place in the rank's block is its place among all ranks', divided by the ranks."""
    given = query_start_loc, num_computed_tokens, block_table, block_size
    slots = build(*given, cp_size=cp_size, cp_interleave=cp_interleave, **kw)
    for row, (first, end) in enumerate(pairwise(query_start_loc.tolist())):
        for token in range(first, end):
            if slots[token] >= 0:
                position = int(num_computed_tokens[row]) + token - first
                block = slots[token] // block_size
                slots[token] = block * block_size + position % (block_size * cp_size) // cp_size
    return slots


@mutation(
    _RANKS,
    part=_SLOTS,
    diagnoses=("32-bit overflow",),
    both=("consumer", "invariants"),
)
def int32_product_on_a_rank(build: Any, *args: Any, cp_size: int, **kwargs: Any) -> Any:
    """A rank's block id times block size is computed in 32 bits and wraps."""
    slots = build(*args, cp_size=cp_size, **kwargs)
    return slots.copy_(slots.to(torch.int32))


@mutation(
    _LENGTHS,
    diagnoses=("stale entry read", "dcp_local_seq_lens"),
    both=("invariants",),
)
def tail_of_the_buffer_kept(
    prepare: Any, out: Any, *args: Any, num_reqs_padded: int | None = None
) -> Any:
    """Only the padded rows are cleared: a captured graph of a larger batch reads old lengths."""
    before = out.clone() if isinstance(out, torch.Tensor) else out
    result = prepare(out, *args, num_reqs_padded=num_reqs_padded)
    if num_reqs_padded is not None:
        out[num_reqs_padded:] = before[num_reqs_padded:]
    return result
