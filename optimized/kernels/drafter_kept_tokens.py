"""Gather the tokens of a batch that a drafter keeps, and shorten its sequences."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 256
"""Tokens per program, and rows."""


@metadata_kernel
def _keep_tokens_kernel(
    offsets,
    offsets_stride,
    starts,
    seq_lens,
    seq_lens_stride,
    slots,
    slots_stride,
    out_seq_lens,
    indices,
    out_slots,
    num_reqs,
    first_step,
    num_tokens,
    BLOCK: tl.constexpr,
):
    """Program b: rows and kept tokens [b * BLOCK, (b + 1) * BLOCK).

    `starts` (R+1) are the offsets of the kept tokens. Bound by the latency of `row_of`, then by
    the 24 bytes moved per token.
    """
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_row = token < num_reqs
    kept = tl.load(starts + token + 1, mask=is_row, other=0) - tl.load(
        starts + token, mask=is_row, other=0
    )
    end = tl.load(offsets + (token + 1) * offsets_stride, mask=is_row, other=0)
    query = end - tl.load(offsets + token * offsets_stride, mask=is_row, other=0)
    length = tl.load(seq_lens + token * seq_lens_stride, mask=is_row, other=0)
    tl.store(out_seq_lens + token, length - (query - kept), mask=is_row)

    request = row_of(token, starts, 1, 0, first_step, num_reqs)
    is_token = token < num_tokens
    start = tl.load(starts + request, mask=is_token, other=0)
    first = tl.load(offsets + request * offsets_stride, mask=is_token, other=0)
    index = first + (token - start)
    slot = tl.load(slots + index * slots_stride, mask=is_token, other=0)
    tl.store(indices + token, index, mask=is_token)
    tl.store(out_slots + token, slot, mask=is_token)


def keep_tokens_on_device(
    offsets: torch.Tensor,
    starts: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    num_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return lengths, token indices and slots of the kept tokens, by one launch.

    `starts` (R+1), dense, are the offsets of the kept tokens on the device; indices have the
    dtype of `offsets`.
    """
    num_reqs, device = seq_lens.shape[0], offsets.device
    out_seq_lens = torch.empty(num_reqs, dtype=seq_lens.dtype, device=device)
    indices = torch.empty(num_tokens, dtype=offsets.dtype, device=device)
    out_slots = torch.empty(num_tokens, dtype=torch.int64, device=device)
    programs = cdiv(max(num_reqs, num_tokens), _BLOCK)
    if programs:
        launch(
            _keep_tokens_kernel,
            device,
            (programs,),
            offsets,
            offsets.stride(0),
            starts,
            seq_lens,
            seq_lens.stride(0),
            slots,
            slots.stride(0),
            out_seq_lens,
            indices,
            out_slots,
            num_reqs,
            first_step(num_reqs),
            num_tokens,
            BLOCK=_BLOCK,
        )
    return out_seq_lens, indices, out_slots
