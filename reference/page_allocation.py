"""Slots that are handed out for new tokens (SPEC.md section 15)."""

from __future__ import annotations

import torch

from .checks.page_allocation import check_alloc_decode, check_alloc_extend

__all__ = [
    "alloc_decode",
    "alloc_extend",
]


def alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Hand out a slot for each token behind the prefixes; write them to `out_indices`.

    `prefix_lens`, `seq_lens` and `last_loc`, the slot of the prefix's last token (-1 without
    a prefix), are (R,), `free_pages` (F,); int32 or int64 on one device. `page_size` is in
    tokens. `out_indices` is int64 with one entry a new token, request by request. New tokens
    fill the prefix's last page, then the first of the free pages. Raise MetadataError for
    too few free pages, sequences below their prefixes, a buffer of another length. SPEC.md
    section 15.
    """
    check_alloc_extend(prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size)
    slots = _slots(prefix_lens.tolist(), seq_lens.tolist(), last_loc, free_pages, page_size)
    out_indices.copy_(torch.tensor(slots, dtype=torch.int64))


def alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Hand out a slot for the last token of each sequence; write them to `out_indices`.

    `seq_lens` (R,) counts the new token; `last_loc` (R,) is the slot of the token before it,
    -1 without one. `free_pages` (F,); int32 or int64 on one device. `out_indices` is (R,)
    int64. Errors as of `alloc_extend`. SPEC.md section 15.
    """
    check_alloc_decode(seq_lens, last_loc, free_pages, out_indices, page_size)
    lengths = seq_lens.tolist()
    before = [length - 1 for length in lengths]
    slots = _slots(before, lengths, last_loc, free_pages, page_size)
    out_indices.copy_(torch.tensor(slots, dtype=torch.int64))


def _slots(
    prefix_lens: list[int],
    seq_lens: list[int],
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
) -> list[int]:
    """Return the slots of positions [prefix, length) of each request, token by token."""
    last_slots, free = last_loc.tolist(), free_pages.tolist()
    slots = []
    for r in range(len(seq_lens)):
        slot = last_slots[r]
        for position in range(prefix_lens[r], seq_lens[r]):
            slot = slot + 1 if position % page_size else free.pop(0) * page_size
            slots.append(slot)
    return slots
