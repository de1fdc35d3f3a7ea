"""Checks of the slots that are handed out (SPEC.md section 15). No device tensor is read."""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from .common import check_device, check_int, check_tensor
from .vectors import check_apart, check_range_of, check_vectors, refuse


def check_alloc_extend(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Require valid arguments of `alloc_extend`."""
    operation = "alloc_extend"
    check_int(operation, "page_size", page_size, 1)
    check_vectors(operation, prefix_lens=prefix_lens, seq_lens=seq_lens, last_loc=last_loc)
    read = {"prefix_lens": prefix_lens, "seq_lens": seq_lens, "last_loc": last_loc}
    _check_memory(operation, free_pages, out_indices, read)
    if not seq_lens.is_cpu:
        return
    check_range_of(operation, "prefix_lens", prefix_lens, 0)
    refuse(operation, "seq_lens", seq_lens, seq_lens < prefix_lens, "at least the prefix's length")
    tokens = int((seq_lens.long() - prefix_lens).sum())
    _check_places(operation, prefix_lens, last_loc, page_size)
    _check_free(operation, prefix_lens, seq_lens, free_pages, page_size)
    _check_room(operation, out_indices, tokens)


def check_alloc_decode(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Require valid arguments of `alloc_decode`."""
    operation = "alloc_decode"
    check_int(operation, "page_size", page_size, 1)
    rows, _ = check_vectors(operation, seq_lens=seq_lens, last_loc=last_loc)
    _check_memory(operation, free_pages, out_indices, {"seq_lens": seq_lens, "last_loc": last_loc})
    if seq_lens.is_cpu:
        check_range_of(operation, "seq_lens", seq_lens, 1)
        _check_places(operation, seq_lens - 1, last_loc, page_size)
        _check_free(operation, seq_lens - 1, seq_lens, free_pages, page_size)
    _check_room(operation, out_indices, rows)


def _check_memory(
    operation: str, free_pages: object, out_indices: object, read: dict[str, torch.Tensor]
) -> None:
    """Require free pages and an int64 buffer, on one device and in memory apart."""
    pages = check_tensor(operation, "free_pages", free_pages, 1)
    out = check_tensor(operation, "out_indices", out_indices, 1)
    if out.dtype is not torch.int64:
        raise MetadataError(operation, "out_indices", f"of dtype {out.dtype}", "int64")
    device = read["seq_lens"].device
    check_device(operation, "free_pages", pages, device)
    check_device(operation, "out_indices", out, device)
    check_apart(operation, "out_indices", out, free_pages=pages, **read)


def _check_places(
    operation: str, prefix_lens: torch.Tensor, last_loc: torch.Tensor, page_size: int
) -> None:
    """Require that a prefix's last slot has its position's place in the page, -1 without prefix."""
    lost = (last_loc < -1) | (prefix_lens > 0) & (last_loc < 0)
    wrong = lost | ((last_loc + 1) % page_size != prefix_lens % page_size)
    refuse(operation, "last_loc", last_loc, wrong, "the slot of the last token before the new ones")


def _check_free(
    operation: str,
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    free_pages: torch.Tensor,
    page_size: int,
) -> None:
    """Require enough free pages, none of them negative or listed twice."""
    check_range_of(operation, "free_pages", free_pages, 0)
    ordered = free_pages.sort().values
    twice = ordered[1:] == ordered[:-1]
    refuse(operation, "free_pages", ordered[1:], twice, "each page once")
    before = (prefix_lens.long() + page_size - 1) // page_size
    needed = int(((seq_lens.long() + page_size - 1) // page_size - before).sum())
    if free_pages.shape[0] < needed:
        given = f"{free_pages.shape[0]} pages"
        raise MetadataError(operation, "free_pages", given, f"at least {needed}")


def _check_room(operation: str, out_indices: torch.Tensor, tokens: int) -> None:
    if out_indices.shape[0] != tokens:
        given = f"of length {out_indices.shape[0]}"
        raise MetadataError(operation, "out_indices", given, f"length {tokens}, the new tokens")
