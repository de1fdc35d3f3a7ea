"""Inputs of a drafter, request by request (SPEC.md section 14)."""

from __future__ import annotations

import torch

from attnproof.reference.checks.drafter import check_step

from .checking import checks
from .dispatch import on_device
from .host import drafter as loops

__all__ = [
    "eagle_step_update_slot_mapping_and_metadata",
]

_checked = checks.follow(globals())

_INT64 = torch.int64


def eagle_step_update_slot_mapping_and_metadata(
    positions_1d: torch.Tensor,
    block_table_tensor: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    max_model_len: int,
    out_clamped_positions: torch.Tensor,
    out_slot_mapping: torch.Tensor,
    input_batch_size: int | None = None,
) -> None:
    """Move each request to its next draft token: write its position, slot and length.

    Shapes, results and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 14.
    """
    if _checked:
        check_step(
            positions_1d,
            block_table_tensor,
            seq_lens,
            block_size,
            max_model_len,
            out_clamped_positions,
            out_slot_mapping,
            input_batch_size,
        )
    rows, width = block_table_tensor.shape
    padded = rows if input_batch_size is None else input_batch_size
    if on_device(positions_1d):
        from .kernels.drafter_step import step_on_device

        step_on_device(
            positions_1d,
            block_table_tensor,
            seq_lens,
            block_size,
            max_model_len,
            out_clamped_positions,
            out_slot_mapping,
            padded,
        )
        return
    loops.step(
        rows,
        padded,
        *_vector(positions_1d),
        block_table_tensor.data_ptr(),
        block_table_tensor.dtype is _INT64,
        *block_table_tensor.stride(),
        width,
        *_vector(seq_lens),
        *_vector(out_clamped_positions),
        out_slot_mapping.data_ptr(),
        out_slot_mapping.stride(0),
        block_size,
        max_model_len,
    )


def _vector(tensor: torch.Tensor) -> tuple[int, bool, int]:
    """Return address, true for int64, and stride of a 1-D tensor."""
    return tensor.data_ptr(), tensor.dtype is _INT64, tensor.stride(0)
