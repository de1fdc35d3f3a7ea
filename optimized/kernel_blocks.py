"""Derive the block tables of kernels with blocks of their own (SPEC.md sections 11 and 12)."""

from __future__ import annotations

import torch

from attnproof.reference.interface import MambaSpec

from .checking import check_call, checks
from .dispatch import on_device
from .host import kernel_blocks as loops

__all__ = [
    "mamba_get_block_table_tensor",
    "map_to_kernel_block_table",
]

_checked = checks.follow(globals())


def map_to_kernel_block_table(
    block_table: torch.Tensor,
    block_size: int,
    kernel_block_size: int,
    stride: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the block table of a kernel whose blocks are parts of the cache's blocks.

    Result, shapes and errors as in `reference`. On a device: one kernel, no sync.
    SPEC.md section 12.
    """
    if _checked:
        check_call("map_to_kernel_block_table", **locals())
    parts = block_size // kernel_block_size
    step = parts if stride is None else stride
    if step == 1 and out is None:
        return block_table
    rows, columns = block_table.shape
    if out is None:
        dtype, device = block_table.dtype, block_table.device
        result = torch.empty((rows, columns * parts), dtype=dtype, device=device)
    else:
        result = out[:rows, : columns * parts]
    if on_device(block_table):
        from .kernels.kernel_blocks import write_kernel_blocks

        write_kernel_blocks(block_table, parts, step, result)
        return result
    row_stride, column_stride = block_table.stride()
    out_row_stride, out_column_stride = result.stride()
    loops.expand_blocks(
        block_table.data_ptr(),
        block_table.dtype is torch.int64,
        rows,
        columns,
        row_stride,
        column_stride,
        parts,
        step,
        result.data_ptr(),
        out_row_stride,
        out_column_stride,
    )
    return result


def mamba_get_block_table_tensor(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    kv_cache_spec: MambaSpec,
    mamba_cache_mode: str,
) -> torch.Tensor:
    """Return the blocks that hold each sequence's state: the last one and the speculative ones.

    Result, shapes and errors as in `reference`. On a device: one kernel, no sync; a column
    beyond the table is not detected there, and no other memory is read. SPEC.md section 11.
    """
    if _checked:
        check_call("mamba_get_block_table_tensor", **locals())
    if mamba_cache_mode == "none":
        return block_table
    rows, count = seq_lens.shape[0], 1 + kv_cache_spec.num_speculative_blocks
    dtype, device = block_table.dtype, block_table.device
    states = torch.empty((rows, count), dtype=dtype, device=device)
    if on_device(block_table):
        from .kernels.state_blocks import write_state_blocks

        write_state_blocks(block_table, seq_lens, kv_cache_spec.block_size, states)
        return states
    lengths = seq_lens.contiguous()
    row_stride, column_stride = block_table.stride()
    loops.take_states(
        block_table.data_ptr(),
        block_table.dtype is torch.int64,
        row_stride,
        column_stride,
        lengths.data_ptr(),
        lengths.dtype is torch.int64,
        rows,
        kv_cache_spec.block_size,
        count,
        states.data_ptr(),
    )
    return states
