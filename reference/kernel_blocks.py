"""Derive the block tables of kernels with blocks of their own (SPEC.md sections 11 and 12)."""

from __future__ import annotations

import torch

from .checks.kernel_blocks import check_kernel_blocks, check_state_blocks
from .interface import MambaSpec

__all__ = [
    "mamba_get_block_table_tensor",
    "map_to_kernel_block_table",
]

_PADDING = -1


def map_to_kernel_block_table(
    block_table: torch.Tensor,
    block_size: int,
    kernel_block_size: int,
    stride: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the block table of a kernel whose blocks are parts of the cache's blocks.

    `block_table` (R, W) int32 or int64. Block b of `block_size` tokens is kernel blocks
    `b * stride + j` of `kernel_block_size` tokens, j in [0, k), with
    k = block_size / kernel_block_size; `stride` is k unless the pages of other layers lie
    between (then more). A negative id is padding and stays -1 in all its k columns. The
    result is (R, W * k), of the table's dtype and device: the table itself where each block is
    one kernel block, otherwise new, or with `out` its first rows and columns; the rest of
    `out` is not written. Raise MetadataError for sizes that do not divide, a stride below k,
    and an `out` that is too small or in the memory of the table. SPEC.md section 12.
    """
    check_kernel_blocks(block_table, block_size, kernel_block_size, stride, out)
    parts = block_size // kernel_block_size
    step = parts if stride is None else stride
    if step == 1 and out is None:
        return block_table
    largest = torch.iinfo(block_table.dtype).max
    rows, columns = block_table.shape
    if out is None:
        out = block_table.new_empty((rows, columns * parts))
    result = out[:rows, : columns * parts]
    for r, row in enumerate(block_table.tolist()):
        kernel_row = []
        for block in row:
            for j in range(parts):
                kernel_block = block * step + j
                fits = block >= 0 and kernel_block <= largest
                kernel_row.append(kernel_block if fits else _PADDING)
        result[r] = torch.tensor(kernel_row, dtype=result.dtype)
    return result


def mamba_get_block_table_tensor(
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    kv_cache_spec: MambaSpec,
    mamba_cache_mode: str,
) -> torch.Tensor:
    """Return the blocks that hold each sequence's state: the last one and the speculative ones.

    `block_table` (R, W) and `seq_lens` (R,), in tokens, are int32 or int64 on one device.
    Mode "none" returns the table itself. "align" and "all" return (R, 1 + K), of its dtype,
    with K = `kv_cache_spec.num_speculative_blocks`: the columns from the one of the
    sequence's last token on, from column 0 for an empty sequence. Raise MetadataError for
    another mode, a negative length, and a table without those columns. SPEC.md section 11.
    """
    check_state_blocks(block_table, seq_lens, kv_cache_spec, mamba_cache_mode)
    if mamba_cache_mode == "none":
        return block_table
    count = 1 + kv_cache_spec.num_speculative_blocks
    states = block_table.new_empty((len(seq_lens), count))
    for r, length in enumerate(seq_lens.tolist()):
        first = max(0, length - 1) // kv_cache_spec.block_size
        for i in range(count):
            states[r, i] = block_table[r, first + i]
    return states
