"""Write the two program pointers of the causal convolution."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from .bisection import first_step, row_of
from .launcher import cdiv, launch
from .versions import metadata_kernel

_BLOCK = 512
"""Entries of each pointer per program."""


@metadata_kernel
def _write_pointers_kernel(
    first_program,
    pointers,
    num_reqs,
    first_step,
    length,
    BLOCK: tl.constexpr,
):
    """Program b: entries [b * BLOCK, (b + 1) * BLOCK) of both pointers.

    `first_program` (R+1) int64 is the first program of each request, then the number of
    programs. Bound by the latency of `row_of`, then by the 8 bytes written per entry.
    """
    entry = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    request = row_of(entry, first_program, 1, 0, first_step, num_reqs)
    is_program = request < num_reqs
    number = entry - tl.load(first_program + request, mask=is_program, other=0)
    in_bounds = entry < length
    tl.store(pointers + entry, tl.where(is_program, request, -1), mask=in_bounds)
    tl.store(pointers + length + entry, tl.where(is_program, number, -1), mask=in_bounds)


def write_pointers(first_program: torch.Tensor, pointers: torch.Tensor) -> None:
    """Fill `pointers` (2, L) int32 completely by one launch."""
    num_reqs, length = first_program.shape[0] - 1, pointers.shape[1]
    launch(
        _write_pointers_kernel,
        pointers.device,
        (cdiv(length, _BLOCK),),
        first_program,
        pointers,
        num_reqs,
        first_step(num_reqs),
        length,
        BLOCK=_BLOCK,
    )
