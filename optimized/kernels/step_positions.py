"""Compute positions and sequence lengths of a step from its request slots."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 512
"""Tokens and rows per program."""


@metadata_kernel
def _positions_kernel(
    idx_mapping,
    query_start_loc,
    num_computed,
    pos,
    seq_lens,
    num_reqs,
    first_step,
    num_positions,
    num_lengths,
    BLOCK: tl.constexpr,
):
    """Program b: positions and sequence lengths [b * BLOCK, (b + 1) * BLOCK).

    Bound by the latency of the bisection's log2(R) loads. Positions behind the last token
    stay; lengths behind the last row become 0, because captured graphs read them.
    """
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = row_of(index, query_start_loc, 1, 0, first_step, num_reqs)
    in_batch = (row < num_reqs) & (index < num_positions)
    slot = tl.load(idx_mapping + row, mask=in_batch, other=-1).to(tl.int64)
    begin = tl.load(query_start_loc + row, mask=in_batch, other=0)
    computed = tl.load(num_computed + slot, mask=slot >= 0, other=0).to(tl.int64)
    tl.store(pos + index, computed + (index - begin), mask=in_batch)

    live = index < num_reqs
    slot = tl.load(idx_mapping + index, mask=live, other=-1).to(tl.int64)
    start = tl.load(query_start_loc + index, mask=live, other=0)
    end = tl.load(query_start_loc + index + 1, mask=live, other=0)
    computed = tl.load(num_computed + slot, mask=slot >= 0, other=0)
    tl.store(seq_lens + index, computed + end - start, mask=index < num_lengths)


def write_positions(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Write the positions of the tokens and all of `seq_lens`, by one launch, without a sync."""
    num_reqs = idx_mapping.shape[0]
    entries = max(pos.shape[0], seq_lens.shape[0])
    if not entries:
        return
    launch(
        _positions_kernel,
        pos.device,
        (cdiv(entries, _BLOCK),),
        idx_mapping,
        query_start_loc,
        num_computed_tokens,
        pos,
        seq_lens,
        num_reqs,
        first_step(num_reqs),
        pos.shape[0],
        seq_lens.shape[0],
        BLOCK=_BLOCK,
    )
