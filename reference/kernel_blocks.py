"""Derive the block tables of kernels with blocks of their own (SPEC.md sections 11 and 12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch

from .checks.common import check_int
from .definition.definition import operation
from .definition.roles import Array, BlockSize, BlockTable, Object, SeqLens
from .interface import MambaSpec, MetadataError

__all__ = [
    "mamba_get_block_table_tensor",
    "map_to_kernel_block_table",
]

_PADDING = -1
_MODES = ("none", "all", "align")


def _are_parts(block_size: int, kernel_block_size: int) -> Iterator[tuple[str, Any, str]]:
    expected = f"a divisor of block_size = {block_size}"
    yield "kernel_block_size", block_size % kernel_block_size, expected


def _are_apart(
    block_size: int, kernel_block_size: int, stride: int | None
) -> Iterator[tuple[str, Any, str]]:
    parts = block_size // kernel_block_size
    yield "stride", stride is not None and stride < parts, f"at least {parts}"


def _holds_parts(
    operation: str, sizes: dict[str, int], block_size: int, kernel_block_size: int
) -> None:
    rows, columns = sizes["R"], sizes["W"] * (block_size // kernel_block_size)
    if "N" in sizes and (sizes["N"] < rows or sizes["M"] < columns):
        got, expected = f"of shape ({sizes['N']}, {sizes['M']})", f"at least ({rows}, {columns})"
        raise MetadataError(operation, "out", got, expected)


@operation(requires=(_are_parts, _are_apart, _holds_parts))
def map_to_kernel_block_table(
    block_table: BlockTable,
    block_size: BlockSize,
    kernel_block_size: BlockSize,
    stride: int | None = None,
    out: Annotated[torch.Tensor, Array("numbers", ("N", "M"), dtype_of="block_table", written=True)]
    | None = None,
) -> Annotated[torch.Tensor, Array("numbers", ("R", "?"), may_alias=True)]:
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


def _has_mode(operation: str, mamba_cache_mode: str) -> None:
    if mamba_cache_mode not in _MODES:
        raise MetadataError(
            operation, "mamba_cache_mode", repr(mamba_cache_mode), f"one of {_MODES}"
        )


def _has_first_columns(
    operation: str, sizes: dict[str, int], kv_cache_spec: MambaSpec, mamba_cache_mode: str
) -> None:
    if mamba_cache_mode == "none":
        return
    check_int(operation, "block_size", kv_cache_spec.block_size, 1)
    check_int(operation, "num_speculative_blocks", kv_cache_spec.num_speculative_blocks, 0)
    _check_columns(operation, sizes, 0, 1 + kv_cache_spec.num_speculative_blocks)


def _has_columns(
    operation: str,
    sizes: dict[str, int],
    seq_lens: torch.Tensor,
    kv_cache_spec: MambaSpec,
    mamba_cache_mode: str,
) -> None:
    if mamba_cache_mode != "none" and len(seq_lens):
        first = max(0, int(seq_lens.max()) - 1) // kv_cache_spec.block_size
        _check_columns(operation, sizes, first, 1 + kv_cache_spec.num_speculative_blocks)


def _check_columns(operation: str, sizes: dict[str, int], first: int, count: int) -> None:
    if sizes["R"] and sizes["W"] < first + count:
        got, expected = f"of {sizes['W']} columns", f"at least {first + count} columns"
        raise MetadataError(operation, "block_table", got, expected)


@operation(requires=(_has_mode, _has_first_columns, _has_columns))
def mamba_get_block_table_tensor(
    block_table: BlockTable,
    seq_lens: SeqLens,
    kv_cache_spec: Annotated[MambaSpec, Object()],
    mamba_cache_mode: Annotated[str, Object()],
) -> Annotated[torch.Tensor, Array("numbers", ("R", "?"), may_alias=True)]:
    """Return the blocks that hold each sequence's state: the last one and the speculative ones.

    `block_table` (R, W) and `seq_lens` (R,), in tokens, are int32 or int64 on one device.
    Mode "none" returns the table itself. "align" and "all" return (R, 1 + K), of its dtype,
    with K = `kv_cache_spec.num_speculative_blocks`: the columns from the one of the
    sequence's last token on, from column 0 for an empty sequence. Raise MetadataError for
    another mode, a negative length, and a table without those columns. SPEC.md section 11.
    """
    if mamba_cache_mode == "none":
        return block_table
    count = 1 + kv_cache_spec.num_speculative_blocks
    states = block_table.new_empty((len(seq_lens), count))
    for r, length in enumerate(seq_lens.tolist()):
        first = max(0, length - 1) // kv_cache_spec.block_size
        states[r] = block_table[r, first : first + count]
    return states
