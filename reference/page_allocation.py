"""Slots that are handed out for new tokens (SPEC.md section 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from .checks.vectors import repeated
from .definition.definition import operation
from .definition.roles import Array, BlockSize
from .interface.errors import MetadataError

__all__ = [
    "alloc_decode",
    "alloc_extend",
]


Condition = Iterator[tuple[str, torch.Tensor | bool, str]]
Lengths = Annotated[torch.Tensor, Array(shape=("R",), least=0)]
LastSlots = Annotated[torch.Tensor, Array(shape=("R",))]
FreePages = Annotated[torch.Tensor, Array(shape=("F",), least=0)]


def _not_below_prefixes(prefix_lens: torch.Tensor, seq_lens: torch.Tensor) -> Condition:
    yield "seq_lens", seq_lens < prefix_lens, "at least the prefix's length"


def _continued(prefix_lens: torch.Tensor, last_loc: torch.Tensor, page_size: int) -> Condition:
    """Require the last slot at its position's place in the page, -1 without a prefix."""
    lost = (last_loc < -1) | (prefix_lens > 0) & (last_loc < 0)
    wrong = lost | ((last_loc + 1) % page_size != prefix_lens % page_size)
    yield "last_loc", wrong, "the slot of the last token before the new ones"


def _enough_pages(
    operation: str,
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
) -> Condition:
    yield "free_pages", repeated(free_pages), "each page once"
    before = (prefix_lens.long() + page_size - 1) // page_size
    needed = int(((seq_lens.long() + page_size - 1) // page_size - before).sum())
    if free_pages.shape[0] < needed:
        got = f"{free_pages.shape[0]} pages"
        raise MetadataError(operation, "free_pages", got, f"at least {needed}")


def _room_for_all(
    prefix_lens: torch.Tensor, seq_lens: torch.Tensor, out_indices: torch.Tensor
) -> Condition:
    tokens = int((seq_lens.long() - prefix_lens).sum())
    expected = f"length {tokens}, the new tokens"
    yield "out_indices", out_indices.shape[0] != tokens, expected


def _decode_continued(seq_lens: torch.Tensor, last_loc: torch.Tensor, page_size: int) -> Condition:
    return _continued(seq_lens - 1, last_loc, page_size)


def _enough_decode_pages(
    operation: str, seq_lens: torch.Tensor, free_pages: torch.Tensor, page_size: int
) -> Condition:
    return _enough_pages(operation, seq_lens - 1, seq_lens, free_pages, page_size)


@operation(requires=(_not_below_prefixes, _continued, _enough_pages, _room_for_all))
def alloc_extend(
    prefix_lens: Lengths,
    seq_lens: Lengths,
    last_loc: LastSlots,
    free_pages: FreePages,
    out_indices: Annotated[torch.Tensor, Array(shape=("N",), dtype=torch.int64, written=True)],
    page_size: BlockSize,
) -> None:
    """Hand out a slot for each token behind the prefixes; write them to `out_indices`.

    `prefix_lens`, `seq_lens` and `last_loc`, the slot of the prefix's last token (-1 without
    a prefix), are (R,), `free_pages` (F,); int32 or int64 on one device. `page_size` is in
    tokens. `out_indices` is int64 with one entry a new token, request by request. New tokens
    fill the prefix's last page, then the first of the free pages. Raise MetadataError for
    too few free pages, sequences below their prefixes, a buffer of another length. SPEC.md
    section 15.
    """
    slots = _slots(prefix_lens.tolist(), seq_lens.tolist(), last_loc, free_pages, page_size)
    out_indices.copy_(torch.tensor(slots, dtype=torch.int64))


@operation(requires=(_decode_continued, _enough_decode_pages))
def alloc_decode(
    seq_lens: Annotated[torch.Tensor, Array(shape=("R",), least=1)],
    last_loc: LastSlots,
    free_pages: FreePages,
    out_indices: Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int64, written=True)],
    page_size: BlockSize,
) -> None:
    """Hand out a slot for the last token of each sequence; write them to `out_indices`.

    `seq_lens` (R,) counts the new token; `last_loc` (R,) is the slot of the token before it,
    -1 without one. `free_pages` (F,); int32 or int64 on one device. `out_indices` is (R,)
    int64. Errors as of `alloc_extend`. SPEC.md section 15.
    """
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
