"""Checks of the block tables that kernels get (SPEC.md sections 11 and 12).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from ..interface.protocols import MambaSpec
from .common import check_device, check_int, check_length, check_tensor
from .slots import overlap

_MODES = ("none", "all", "align")


def check_kernel_blocks(
    block_table: torch.Tensor,
    block_size: int,
    kernel_block_size: int,
    stride: int | None,
    out: torch.Tensor | None,
) -> None:
    """Require valid arguments of `map_to_kernel_block_table`."""
    operation = "map_to_kernel_block_table"
    check_tensor(operation, "block_table", block_table, 2)
    check_int(operation, "block_size", block_size, 1)
    check_int(operation, "kernel_block_size", kernel_block_size, 1)
    if block_size % kernel_block_size:
        expected = f"a divisor of block_size = {block_size}"
        raise MetadataError(operation, "kernel_block_size", kernel_block_size, expected)
    if stride is not None:
        check_int(operation, "stride", stride, block_size // kernel_block_size)
    if out is None:
        return
    check_tensor(operation, "out", out, 2)
    check_device(operation, "out", out, block_table.device)
    if out.dtype is not block_table.dtype:
        raise MetadataError(operation, "out", f"of dtype {out.dtype}", f"{block_table.dtype}")
    rows, columns = block_table.shape
    columns *= block_size // kernel_block_size
    if out.shape[0] < rows or out.shape[1] < columns:
        given, expected = f"of shape {tuple(out.shape)}", f"at least ({rows}, {columns})"
        raise MetadataError(operation, "out", given, expected)
    if overlap(block_table, out):
        raise MetadataError(operation, "out", "in the memory of block_table", "memory apart")


def check_state_blocks(
    block_table: torch.Tensor, seq_lens: torch.Tensor, spec: MambaSpec, mode: str
) -> None:
    """Require valid arguments of `mamba_get_block_table_tensor`."""
    operation = "mamba_get_block_table_tensor"
    check_tensor(operation, "block_table", block_table, 2)
    check_tensor(operation, "seq_lens", seq_lens, 1)
    check_length(operation, "seq_lens", seq_lens, block_table.shape[0])
    check_device(operation, "seq_lens", seq_lens, block_table.device)
    if not isinstance(mode, str):
        given = type(mode).__name__
        raise TypeError(f"{operation}: mamba_cache_mode is {given}, expected str")
    if mode not in _MODES:
        raise MetadataError(operation, "mamba_cache_mode", repr(mode), f"one of {_MODES}")
    if mode == "none":
        return
    check_int(operation, "block_size", spec.block_size, 1)
    check_int(operation, "num_speculative_blocks", spec.num_speculative_blocks, 0)
    if seq_lens.is_cpu and bool((seq_lens < 0).any()):
        raise MetadataError(operation, "seq_lens", int(seq_lens.min()), "lengths of at least 0")
    _check_columns(operation, block_table, seq_lens, spec)


def _check_columns(
    operation: str, block_table: torch.Tensor, seq_lens: torch.Tensor, spec: MambaSpec
) -> None:
    """Require a column for each block that is taken; on a device one for the shortest sequence."""
    if not len(seq_lens):
        return
    longest = int(seq_lens.max()) if seq_lens.is_cpu else 0
    first = max(0, longest - 1) // spec.block_size
    needed, width = first + 1 + spec.num_speculative_blocks, block_table.shape[1]
    if width < needed:
        expected = f"at least {needed} columns"
        raise MetadataError(operation, "block_table", f"of {width} columns", expected)
