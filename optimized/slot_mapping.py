"""Compute the cache slots of a batch's tokens (SPEC.md section 5).

`sequence_slots` holds the forms for one sequence.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from .checking import check_call, checks
from .dispatch import INTERPRETED, on_device
from .host import slot_mapping as loops

__all__ = [
    "build_slot_mapping",
]

_checked = checks.follow(globals())
_TENSOR, _INT64 = torch.Tensor, torch.int64
_WIDE: Final = {torch.int32: False, torch.int64: True}
Ranks = tuple[int, int, int]
"""Number of ranks of context parallelism, the rank, and the interleave in tokens."""
_NO_SLOTS: Final = torch.empty(0, dtype=torch.int64)
"""Source of `new_empty`, which takes three quarters of the time of `torch.empty` with a dtype."""


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    *,
    num_padded_tokens: int | None = None,
    start_idx: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
) -> torch.Tensor:
    """Return the cache slots of all query tokens of a batch, int64, on the inputs' device.

    `query_start_loc` (R+1,), `num_computed_tokens` (R,), `start_idx` (R,) and
    `block_table` (R, W) are int32 or int64; `block_size` is in tokens. Slots are -1 before
    `start_idx`, beyond column W, of tokens that another rank than `cp_rank` owns, and after
    the last token up to the end of `out`. Result, length and errors as in `reference`. On a
    device: one kernel, and a sync only if neither `num_padded_tokens` nor `out` gives the
    length. SPEC.md sections 5 and 10.
    """
    plain = type(cp_size) is type(cp_rank) is type(cp_interleave) is int
    plain = plain and cp_size == cp_interleave == 1 and cp_rank == 0
    batch = (
        query_start_loc,
        num_computed_tokens,
        block_table,
        block_size,
        num_padded_tokens,
        start_idx,
        out,
        None if plain else (cp_size, cp_rank, cp_interleave),
    )
    slots = None if INTERPRETED else _by_loops(*batch)
    if slots is None:
        # Loops return None for what may be malformed; kernels trust their input.
        trusted = isinstance(query_start_loc, _TENSOR) and on_device(query_start_loc)
        if _checked or not trusted:
            check_call(
                "build_slot_mapping",
                *batch[:4],
                num_padded_tokens=num_padded_tokens,
                start_idx=start_idx,
                out=out,
                cp_size=cp_size,
                cp_rank=cp_rank,
                cp_interleave=cp_interleave,
            )
        slots = (_on_device if trusted else _by_loops_on_copies)(*batch)
    if out is None or num_padded_tokens is None:
        return slots
    return slots[:num_padded_tokens]


def _by_loops(
    starts: torch.Tensor,
    computed: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    num_padded: int | None,
    start_idx: torch.Tensor | None,
    out: torch.Tensor | None,
    ranks: Ranks | None,
) -> torch.Tensor | None:
    """Return the slots of a batch of dense CPU tensors; None if an argument may be malformed."""
    # Reading attributes of tensors takes most of the time for a few decodes. Therefore each
    # is read once, and the loops take addresses.
    if not type(starts) is type(table) is _TENSOR or table.ndim != 2 or not table.is_cpu:
        return None
    rows, width = table.shape
    if starts.shape != (rows + 1,) or not starts.is_cpu or not starts.is_contiguous():
        return None
    wide_starts, wide_table = _WIDE.get(starts.dtype), _WIDE.get(table.dtype)
    wide = _wide_row(computed, rows)
    kept, wide_kept = computed, wide
    if start_idx is not None:
        kept, wide_kept = start_idx, _wide_row(start_idx, rows)
    if wide_starts is None or wide is None or wide_kept is None or wide_table is None:
        return None
    if type(block_size) is not int or block_size < 1:
        return None
    if ranks is not None and not _are_ranks(block_size, *ranks):
        return None
    starts_at, computed_at = starts.data_ptr(), computed.data_ptr()
    tokens = loops.count_tokens(rows, starts_at, wide_starts, computed_at, wide)
    slots = _room(tokens, num_padded, out)
    if slots is None:
        return None
    row_stride, column_stride = table.stride()
    fill = loops.fill_slots if ranks is None else partial(loops.fill_rank_slots, *ranks)
    filled = fill(
        rows,
        starts_at,
        wide_starts,
        computed_at,
        wide,
        kept.data_ptr(),
        wide_kept,
        table.data_ptr(),
        wide_table,
        width,
        row_stride,
        column_stride,
        block_size,
        slots.data_ptr(),
        slots.numel(),
        out is not None,
    )
    return slots if filled else None


def _are_ranks(block_size: int, size: Any, rank: Any, interleave: Any) -> bool:
    """True for a rank of context parallelism, and an interleave that divides the block size."""
    if not type(size) is type(rank) is type(interleave) is int:
        return False
    return 0 <= rank < size and interleave >= 1 and block_size % interleave == 0


def _wide_row(lengths: torch.Tensor, rows: int) -> bool | None:
    """True if `lengths` is int64, False if int32; None unless it is a dense (rows,) CPU tensor."""
    if type(lengths) is not _TENSOR or lengths.shape != (rows,) or not lengths.is_cpu:
        return None
    return _WIDE.get(lengths.dtype) if lengths.is_contiguous() else None


def _room(tokens: int, num_padded: int | None, out: torch.Tensor | None) -> torch.Tensor | None:
    """Return dense CPU memory for the slots; None if `out` is unsuitable or the length is short."""
    length = tokens if num_padded is None else num_padded
    if type(length) is not int or not 0 <= tokens <= length:
        return None
    if out is None:
        return _NO_SLOTS.new_empty(length)
    if type(out) is not _TENSOR or not out.is_cpu or out.dtype is not _INT64 or out.ndim != 1:
        return None
    return out if out.is_contiguous() and length <= out.numel() else None


def _on_device(
    starts: torch.Tensor,
    computed: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    num_padded: int | None,
    start_idx: torch.Tensor | None,
    out: torch.Tensor | None,
    ranks: Ranks | None,
) -> torch.Tensor:
    if out is None:
        length = int(starts[-1]) if num_padded is None else num_padded
        out = torch.empty(length, dtype=torch.int64, device=starts.device)

    if ranks is not None:
        from .kernels.rank_slot_mapping import write_rank_slots

        write_rank_slots(starts, computed, table, block_size, start_idx, out, ranks)
        return out

    from .kernels.slot_mapping import write_slots

    write_slots(starts, computed, table, block_size, start_idx, out)
    return out


def _by_loops_on_copies(
    starts: torch.Tensor,
    computed: torch.Tensor,
    table: torch.Tensor,
    block_size: int,
    num_padded: int | None,
    start_idx: torch.Tensor | None,
    out: torch.Tensor | None,
    ranks: Ranks | None,
) -> torch.Tensor:
    """Return the slots of a checked batch of strided tensors or tensor subclasses."""
    starts, computed = _plain(starts).contiguous(), _plain(computed).contiguous()
    start_idx = None if start_idx is None else _plain(start_idx).contiguous()
    length = num_padded if out is None else out.shape[0]
    table = _plain(table)
    slots = _by_loops(starts, computed, table, block_size, length, start_idx, None, ranks)
    assert slots is not None  # the shared check has passed
    return slots if out is None else out.copy_(slots)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(torch.Tensor)
