"""Checks of the block tables of a persistent batch (SPEC.md section 13).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ..interface.errors import MetadataError
from .common import check_bool, check_device, check_int

_INT32, _INT64 = torch.int32, torch.int64
_CLASS = "BlockTables"


def check_sizes(
    block_sizes: Sequence[int],
    max_num_reqs: int,
    max_num_batched_tokens: int,
    max_num_blocks_per_group: Sequence[int],
) -> None:
    """Require positive sizes, and a width for each group."""
    check_int(_CLASS, "max_num_reqs", max_num_reqs, 1)
    check_int(_CLASS, "max_num_batched_tokens", max_num_batched_tokens, 1)
    for block_size in block_sizes:
        check_int(_CLASS, "block_sizes", block_size, 1)
    check_groups("max_num_blocks_per_group", max_num_blocks_per_group, len(block_sizes))
    for width in max_num_blocks_per_group:
        check_int(_CLASS, "max_num_blocks_per_group", width, 1)


def check_groups(field: str, values: Sequence[object], groups: int) -> None:
    """Require one value for each group."""
    if len(values) != groups:
        raise MetadataError(_CLASS, field, f"of length {len(values)}", f"length {groups}")


def check_ranks(
    block_sizes: Sequence[int],
    cp_size: int,
    cp_rank: int,
    cp_interleave: int,
    slot_mapping_enabled: Sequence[bool],
    dcp_sharded: Sequence[bool],
) -> None:
    """Require a rank of the group, and turns that divide the blocks of sharded groups."""
    check_int(_CLASS, "cp_size", cp_size, 1)
    check_int(_CLASS, "cp_rank", cp_rank, 0)
    check_int(_CLASS, "cp_interleave", cp_interleave, 1)
    if cp_rank >= cp_size:
        raise MetadataError(_CLASS, "cp_rank", cp_rank, f"at most {cp_size - 1}")
    for field, flags in (
        ("slot_mapping_enabled", slot_mapping_enabled),
        ("dcp_sharded", dcp_sharded),
    ):
        check_groups(field, flags, len(block_sizes))
        for flag in flags:
            check_bool(_CLASS, field, flag)
    for block_size, sharded in zip(block_sizes, dcp_sharded, strict=True):
        if cp_size > 1 and sharded and block_size % cp_interleave:
            expected = f"a divisor of the block size {block_size}"
            raise MetadataError(_CLASS, "cp_interleave", cp_interleave, expected)


def check_appended(
    max_num_reqs: int,
    groups: int,
    req_index: int,
    new_block_ids: Sequence[Sequence[int]],
    overwrite: bool,
) -> None:
    """Require a slot, a list of block ids for each group, and a flag."""
    operation = f"{_CLASS}.append_block_ids"
    check_int(operation, "req_index", req_index, 0)
    if req_index >= max_num_reqs:
        raise MetadataError(operation, "req_index", req_index, f"at most {max_num_reqs - 1}")
    if not isinstance(new_block_ids, (tuple, list)):
        got = type(new_block_ids).__name__
        raise TypeError(f"{operation}: new_block_ids is {got}, expected a tuple of lists")
    check_bool(operation, "overwrite", overwrite)
    if len(new_block_ids) != groups:
        got = f"of length {len(new_block_ids)}"
        raise MetadataError(operation, "new_block_ids", got, f"length {groups}")
    for block_ids in new_block_ids:
        for block in block_ids:
            check_int(operation, "new_block_ids", block, 0)
            if block > 2**31 - 1:
                raise MetadataError(operation, "new_block_ids", block, "an id below 2**31")


def check_room(group: int, req_index: int, blocks: int, columns: int) -> None:
    """Require a row that holds so many blocks (RuntimeError)."""
    if blocks > columns:
        raise RuntimeError(
            f"{_CLASS}.append_block_ids: new_block_ids give request slot {req_index} {blocks} "
            f"blocks in group {group}, expected at most {columns}"
        )


def check_values(
    operation: str,
    field: str,
    value: object,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Require a tensor of at least this `shape` (None: any), dense in its last dimension."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected torch.Tensor")
    if value.ndim != len(shape):
        got = f"of shape {tuple(value.shape)}"
        raise MetadataError(operation, field, got, f"{len(shape)}-D")
    if value.dtype not in dtypes:
        expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise MetadataError(operation, field, f"of dtype {value.dtype}", expected)
    if any(least is not None and size < least for size, least in zip(value.shape, shape)):  # noqa: B905
        least = tuple("any" if size is None else size for size in shape)
        got = f"of shape {tuple(value.shape)}"
        raise MetadataError(operation, field, got, f"at least {least}")
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        got = f"of strides {value.stride()}"
        raise MetadataError(operation, field, got, "a dense last dimension")
    check_device(operation, field, value, device)


def check_mapping(
    operation: str,
    idx_mapping: torch.Tensor,
    slots: int,
    device: torch.device,
) -> None:
    """Require slots below `slots`, or -1; read them on the CPU only."""
    check_values(operation, "idx_mapping", idx_mapping, (None,), (_INT32, _INT64), device)
    for slot in idx_mapping.tolist() if idx_mapping.is_cpu else ():
        if not -1 <= slot < slots:
            raise MetadataError(operation, "idx_mapping", slot, f"-1 or a slot below {slots}")


def check_starts(
    operation: str,
    field: str,
    offsets: torch.Tensor,
    rows: int,
    device: torch.device,
    *,
    most: int,
) -> list[int] | None:
    """Require `rows + 1` int32 offsets that rise from 0 to at most `most`.

    Entries behind them are not read. Return the offsets if they are on the CPU, else None.
    """
    check_values(operation, field, offsets, (rows + 1,), (_INT32,), device)
    if not offsets.is_cpu:
        return None
    starts: list[int] = offsets[: rows + 1].tolist()
    if starts[0] != 0 or any(end < start for start, end in pairwise(starts)):
        raise MetadataError(operation, field, str(starts), "offsets that rise from 0")
    if starts[-1] > most:
        raise MetadataError(operation, field, f"{starts[-1]} at its end", f"at most {most}")
    return starts


def check_gather(
    widths: Sequence[int],
    device: torch.device,
    slots: int,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: Sequence[torch.Tensor],
    out_ptrs: torch.Tensor | None,
) -> None:
    """Require rows that fit into the tables of `out`."""
    operation = f"{_CLASS}.gather_block_tables"
    check_mapping(operation, idx_mapping, slots, device)
    check_int(operation, "num_reqs_padded", num_reqs_padded, 0)
    rows = idx_mapping.shape[0]
    if num_reqs_padded < rows:
        raise MetadataError(operation, "num_reqs_padded", num_reqs_padded, f"at least {rows}")
    if len(out) != len(widths):
        raise MetadataError(operation, "out", f"of length {len(out)}", f"length {len(widths)}")
    for width, table in zip(widths, out, strict=True):
        check_values(operation, "out", table, (None, None), (_INT32,), device)
        if table.shape[1] != width or (table.shape[0] > 1 and table.stride(0) != width):
            got = f"of shape {tuple(table.shape)}, strides {table.stride()}"
            raise MetadataError(operation, "out", got, f"dense rows of {width} columns")
        if table.shape[0] < num_reqs_padded:
            expected = f"at most {table.shape[0]}, the rows of the tables"
            raise MetadataError(operation, "num_reqs_padded", num_reqs_padded, expected)
    if out_ptrs is not None:
        check_values(operation, "out_ptrs", out_ptrs, (len(out),), (torch.uint64,), device)


def check_slot_inputs(
    groups: int,
    slots: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
    out: torch.Tensor,
    device: torch.device,
) -> None:
    """Require positions of all tokens, and buffers that hold them."""
    operation = f"{_CLASS}.compute_slot_mappings"
    check_mapping(operation, idx_mapping, slots, device)
    check_int(operation, "num_tokens_padded", num_tokens_padded, 0)
    check_values(operation, "out", out, (groups, None), (_INT64,), device)
    if out.shape[1] < num_tokens_padded:
        expected = f"at most {out.shape[1]}, the tokens of the buffer"
        raise MetadataError(operation, "num_tokens_padded", num_tokens_padded, expected)
    check_values(operation, "positions", positions, (None,), (_INT64,), device)
    rows = idx_mapping.shape[0]
    most = min(num_tokens_padded, positions.shape[0])
    starts = check_starts(operation, "query_start_loc", query_start_loc, rows, device, most=most)
    if starts and starts[-1] and int(positions[: starts[-1]].min()) < 0:
        got = f"{int(positions[: starts[-1]].min())} at its least"
        raise MetadataError(operation, "positions", got, "no negative position")


def check_dummy_size(method: str, field: str, value: int, most: int) -> None:
    """Require a size from 0 to that of the buffers."""
    check_int(f"{_CLASS}.{method}", field, value, 0)
    if value > most:
        raise MetadataError(f"{_CLASS}.{method}", field, value, f"at most {most}")
