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


@mutation(
    _RANKS,
    "K30",
    part=_SLOTS,
    source="vllm-project/vllm#51031",
    diagnoses=("a slot for a token of another rank", "no slot on the rank that owns the token"),
    both=("consumer", "invariants"),
)
def turns_within_kernel_blocks(
    build: Any,
    query_start_loc: Any,
    num_computed_tokens: Any,
    block_table: Any,
    block_size: int,
    *,
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    **kw: Any,
) -> Any:
    """Ranks take turns within a kernel's block of half the size, which is shorter than a turn."""
    given = query_start_loc, num_computed_tokens, block_table, block_size
    ranks = {"cp_size": cp_size, "cp_rank": cp_rank, "cp_interleave": cp_interleave}
    slots, kernel = build(*given, **ranks, **kw), block_size // 2
    if block_size % 2 or cp_interleave <= kernel:
        return slots
    start_idx = kw.get("start_idx")
    for row, (first, end) in enumerate(pairwise(query_start_loc.tolist())):
        for token in range(first, end):
            position = int(num_computed_tokens[row]) + token - first
            turn, place = divmod(position, kernel * cp_size)
            column, place = divmod(turn * kernel + place % cp_interleave, block_size)
            left_out = start_idx is not None and position < int(start_idx[row])
            mine = position % (kernel * cp_size) // cp_interleave % cp_size == cp_rank
            if not mine or left_out or column >= block_table.shape[1]:
                slots[token] = -1
            else:
                slots[token] = int(block_table[row, column]) * block_size + place
    return slots


@mutation(
    "get_dcp_lens",
    "K37",
    source="vllm-project/vllm#28526",
    diagnoses=("the positions before a range counted with it",),
    both=("invariants",),
)
def context_counted_with_its_chunk(
    count: Any,
    lens: Any,
    dcp_size: int,
    dcp_rank: int,
    start: Any = None,
    *interleave: Any,
    **kw: Any,
) -> Any:
    """A rank's share of a chunk is that of the whole context through the chunk."""
    share = count(lens, dcp_size, dcp_rank, start, *interleave, **kw)
    if start is None:
        return share
    return share + count(start.to(lens.dtype), dcp_size, dcp_rank, None, *interleave, **kw)


@mutation("get_dcp_lens", diagnoses=("off by one token", "result "), both=("invariants",))
def second_turn_of_a_rank_behind_the_last(
    count: Any,
    lens: Any,
    dcp_size: int,
    dcp_rank: int,
    start: Any = None,
    interleave_size: int = 1,
) -> Any:
    """Rank 0 gets none of the short ranges that begin in the last rank's turn."""
    share = count(lens, dcp_size, dcp_rank, start, interleave_size)
    short = bool(len(lens)) and int(lens.max()) <= interleave_size
    if start is None or dcp_rank or dcp_size == 1 or not short:
        return share
    return share.masked_fill(start // interleave_size % dcp_size == dcp_size - 1, 0)


@mutation("localize_dcp_indices", diagnoses=("result too small",), both=("invariants",))
def one_turn_with_its_end(
    localize: Any, indices: Any, dcp_size: int, dcp_rank: int, interleave_size: int = 1
) -> Any:
    """The position just after one turn of all ranks is dropped if no later one is given."""
    own = localize(indices, dcp_size, dcp_rank, interleave_size)
    turn = dcp_size * interleave_size
    if dcp_size == 1 or not indices.numel() or int(indices.max()) > turn:
        return own
    return own.masked_fill(indices == turn, -1)
