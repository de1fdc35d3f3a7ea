"""Compute the cache slots of a batch's query tokens on one rank of context parallelism."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .division import divisors, product, quotient
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 512
"""Tokens per program."""


@metadata_kernel
def _rank_slot_mapping_kernel(
    query_start_loc,
    query_start_loc_stride,
    num_computed,
    num_computed_stride,
    table,
    table_row_stride,
    table_column_stride,
    start_idx,
    start_idx_stride,
    out,
    out_stride,
    num_reqs,
    first_step,
    width,
    num_slots,
    rank,
    block_size,
    ranks,
    interleave,
    POWERS: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program b: entries [b * BLOCK, (b + 1) * BLOCK) of the rank's slot mapping.

    Bound like the kernel of one rank.
    """
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    request = row_of(token, query_start_loc, query_start_loc_stride, 0, first_step, num_reqs)
    in_batch = (request < num_reqs) & (token < num_slots)
    begin = tl.load(query_start_loc + request * query_start_loc_stride, mask=in_batch, other=0)
    computed = tl.load(num_computed + request * num_computed_stride, mask=in_batch, other=0)
    position = computed + (token - begin)
    turn = quotient(position, interleave, POWERS)
    own_turn = quotient(turn, ranks, POWERS)
    owner = turn - product(own_turn, ranks, POWERS)
    local = product(own_turn - turn, interleave, POWERS) + position
    column = quotient(local, block_size, POWERS)
    kept = in_batch & (position >= 0) & (owner == rank) & (column < width)
    if MASKED:
        first_kept = tl.load(start_idx + request * start_idx_stride, mask=in_batch, other=0)
        kept = kept & (position >= first_kept)
    entry = table + request * table_row_stride + column * table_column_stride
    block = tl.load(entry, mask=kept, other=0).to(tl.int64)
    slot = product(block - column, block_size, POWERS) + local
    tl.store(out + token * out_stride, tl.where(kept, slot, -1), mask=token < num_slots)


def write_rank_slots(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    start_idx: torch.Tensor | None,
    out: torch.Tensor,
    ranks: tuple[int, int, int],
) -> None:
    """Fill the whole of `out` (int64, any stride) by one launch, without a sync.

    `ranks` are the number of ranks, the rank and the interleave.
    """
    num_reqs, width = block_table.shape
    num_slots = out.shape[0]
    if num_slots == 0:
        return
    size, rank, interleave = ranks
    first_kept = num_computed_tokens if start_idx is None else start_idx
    powers, sizes = divisors(block_size, size, interleave)
    launch(
        _rank_slot_mapping_kernel,
        out.device,
        (cdiv(num_slots, _BLOCK),),
        query_start_loc,
        query_start_loc.stride(0),
        num_computed_tokens,
        num_computed_tokens.stride(0),
        block_table,
        *block_table.stride(),
        first_kept,
        first_kept.stride(0),
        out,
        out.stride(0),
        num_reqs,
        first_step(num_reqs),
        width,
        num_slots,
        rank,
        *sizes,
        POWERS=powers,
        MASKED=start_idx is not None,
        BLOCK=_BLOCK,
    )
