"""Find the last valid sampled token of each request."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .launcher import cdiv, launch
from .versions import metadata_kernel

_ROWS = 32
"""Requests per program."""
_TOKENS = 8
"""Sampled tokens that a program reads of each request at a time."""


@metadata_kernel
def _next_tokens_kernel(
    sampled,
    sampled_row_stride,
    sampled_column_stride,
    discarded,
    discarded_stride,
    backup,
    backup_stride,
    next_tokens,
    counts,
    num_reqs,
    width,
    vocab_size,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Program b: requests [b * ROWS, (b + 1) * ROWS).

    Bound by latency: a tile of K + 1 tokens a request is one load, most steps need one tile.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < num_reqs
    dropped = tl.load(discarded + row * discarded_stride, mask=exists, other=1)
    kept = exists & (dropped == 0)
    last = tl.load(backup + row * backup_stride, mask=exists, other=0).to(tl.int64)
    count = tl.zeros([ROWS], tl.int32)
    for first in range(0, width, TOKENS):
        column = (first + tl.arange(0, TOKENS)).to(tl.int64)
        inside = kept[:, None] & (column < width)[None, :]
        at = row[:, None] * sampled_row_stride + column[None, :] * sampled_column_stride
        token = tl.load(sampled + at, mask=inside, other=-1).to(tl.int64)
        valid = inside & (token != -1) & (token < vocab_size)
        count += tl.sum(valid.to(tl.int32), axis=1)
        index = tl.max(tl.where(valid, column[None, :], -1), axis=1)
        chosen = tl.sum(tl.where(column[None, :] == index[:, None], token, 0), axis=1)
        last = tl.where(index >= 0, chosen, last)
    tl.store(next_tokens + row, last, mask=exists)
    tl.store(counts + row, count, mask=exists)


def next_tokens_on_device(
    sampled: torch.Tensor, discarded: torch.Tensor, backup: torch.Tensor, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return next tokens and counts, int32 (R,), by one launch."""
    num_reqs, width = sampled.shape
    next_tokens = torch.empty(num_reqs, dtype=torch.int32, device=sampled.device)
    counts = torch.empty(num_reqs, dtype=torch.int32, device=sampled.device)
    if num_reqs == 0:
        return next_tokens, counts
    launch(
        _next_tokens_kernel,
        sampled.device,
        (cdiv(num_reqs, _ROWS),),
        sampled,
        *sampled.stride(),
        discarded,
        discarded.stride(0),
        backup,
        backup.stride(0),
        next_tokens,
        counts,
        num_reqs,
        width,
        vocab_size,
        ROWS=_ROWS,
        TOKENS=_TOKENS,
    )
    return next_tokens, counts
