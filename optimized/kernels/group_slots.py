"""Compute the cache slots of a step's tokens in every KV-cache group."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .division import divisors, product, quotient
from .launcher import cdiv, launch
from .pointers import int32_pointer
from .versions import metadata_kernel

_BLOCK = 512
"""Tokens per program."""


@metadata_kernel
def _group_slots_kernel(
    idx_mapping,
    query_start_loc,
    positions,
    tables,
    widths,
    num_blocks,
    num_blocks_stride,
    block_sizes,
    enabled,
    sharded,
    out,
    out_stride,
    num_reqs,
    first_step,
    num_slots,
    cp_rank,
    cp_size,
    cp_interleave,
    SHARDED: tl.constexpr,
    POWERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (b, g): entries [b * BLOCK, (b + 1) * BLOCK) of group g's slots.

    Bound by the latency of the log2(R) loads of the bisection, then by the 8 bytes read and
    the 8 bytes written per token. Entries behind the last token become -1.
    """
    group = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = row_of(token, query_start_loc, 1, 0, first_step, num_reqs)
    in_batch = (row < num_reqs) & (token < num_slots)
    slot = tl.load(idx_mapping + row, mask=in_batch, other=-1).to(tl.int64)
    position = tl.load(positions + token, mask=in_batch, other=0).to(tl.int64)
    kept = (slot >= 0) & (tl.load(enabled + group) != 0)
    if SHARDED:
        is_sharded = tl.load(sharded + group) != 0
        turn = quotient(position, cp_interleave, POWERS)
        own_turn = quotient(turn, cp_size, POWERS)
        owner = turn - product(own_turn, cp_size, POWERS)
        local = product(own_turn - turn, cp_interleave, POWERS) + position
        kept = kept & ((owner == cp_rank) | (is_sharded == 0))
        position = tl.where(is_sharded, local, position)
    block_size = tl.load(block_sizes + group).to(tl.int64)
    width = tl.load(widths + group).to(tl.int64)
    column = position // block_size
    live = tl.load(num_blocks + group * num_blocks_stride + slot, mask=kept, other=0)
    kept = kept & (column < live)
    entry = int32_pointer(tables, group) + slot * width + column
    block = tl.load(entry, mask=kept, other=0).to(tl.int64)
    slot_id = block * block_size + (position - column * block_size)
    tl.store(out + group * out_stride + token, tl.where(kept, slot_id, -1), mask=token < num_slots)


def write_group_slots(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    tables: torch.Tensor,
    layout: tuple[torch.Tensor, ...],
    num_blocks: torch.Tensor,
    ranks: tuple[int, int, int],
    out: torch.Tensor,
) -> None:
    """Fill the whole of `out`, (G, tokens) int64, by one launch, without a sync.

    `layout` are widths, block sizes and the two flags of each group, (G,) int32; `ranks` are
    the number of ranks, this one, and the positions of a turn.
    """
    groups, num_slots = out.shape
    if groups == 0 or num_slots == 0:
        return
    widths, block_sizes, enabled, sharded = layout
    cp_size, cp_rank, turn = ranks
    num_reqs = idx_mapping.shape[0]
    powers, sizes = divisors(cp_size, turn)
    launch(
        _group_slots_kernel,
        out.device,
        (cdiv(num_slots, _BLOCK), groups),
        idx_mapping,
        query_start_loc,
        positions,
        tables,
        widths,
        num_blocks,
        num_blocks.stride(0),
        block_sizes,
        enabled,
        sharded,
        out,
        out.stride(0),
        num_reqs,
        first_step(num_reqs),
        num_slots,
        cp_rank,
        *sizes,
        SHARDED=cp_size > 1,
        POWERS=powers,
        BLOCK=_BLOCK,
    )
