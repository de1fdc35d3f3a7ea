"""Checks of the slots of one sequence (SPEC.md section 5), and of memory that is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index

import torch

from ..interface.errors import MetadataError
from .common import check_int, check_tables


def overlap(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the address ranges from first to last element of the two tensors intersect."""
    start, stop = _memory(tensor)
    other_start, other_stop = _memory(other)
    return start < other_stop and other_start < stop and tensor.device == other.device


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of the first element and the address after the last."""
    start = tensor.data_ptr()
    if not tensor.numel() or not start:  # 0: a tensor without memory, as on the meta device
        return start, start
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (1 + steps) * tensor.element_size()


def check_block_row(
    operation: str,
    block_tables: Mapping[int, Sequence[int]] | None,
    seq_id: int,
    range_start: int,
    range_end: int,
    block_size: int,
) -> Sequence[int]:
    """Return the block table of `seq_id`; require a block for [range_start, range_end)."""
    check_tables(operation, block_tables)
    if block_tables is None or seq_id not in block_tables:
        got = "None" if block_tables is None else f"without sequence {seq_id}"
        raise MetadataError(operation, "block_tables", got, f"a table for sequence {seq_id}")
    check_range(operation, block_tables[seq_id], range_start, range_end, block_size)
    return block_tables[seq_id]


def check_blocks(
    operation: str,
    field: str,
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Require non-negative integers (TypeError) as blocks of [range_start, range_end)."""
    if range_start >= range_end:
        return
    for column in range(range_start // block_size, -(-range_end // block_size)):
        check_block(operation, f"{field}[{column}]", block_table[column])


def check_block(operation: str, field: str, value: object) -> int:
    """Return a block id as an int; require a Python or numpy integer (TypeError), at least 0."""
    try:
        block = index(value)  # type: ignore[arg-type]  # TypeError if it is not an integer
    except TypeError:
        got = type(value).__name__
        raise TypeError(f"{operation}: {field} is {got}, expected int") from None
    if block < 0:
        raise MetadataError(operation, field, block, "at least 0")
    return block


def check_range(
    operation: str,
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Require a block for each position of [range_start, range_end)."""
    check_int(operation, "range_start", range_start, 0)
    check_int(operation, "range_end", range_end, 0)
    check_int(operation, "block_size", block_size, 1)
    needed = -(-range_end // block_size)
    if range_start < range_end and needed > len(block_table):
        expected = f"at least {needed} for positions up to {range_end - 1}"
        raise MetadataError(operation, "block_table", f"{len(block_table)} blocks", expected)
