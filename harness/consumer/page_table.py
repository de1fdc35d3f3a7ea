"""Check page tables in CSR form the way a paged kernel reads them (SPEC.md section 15)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attnproof.harness.consumer.batch import visible_key_violations
from attnproof.harness.consumer.visible_keys import ExpectedTokens, Mask, VisibleKeys
from attnproof.harness.model.violation import Violation


class PageTable(NamedTuple):
    """The pages of each request as CSR; int64 arrays."""

    indptr: np.ndarray
    """(R + 1,) index of each request's first page, then the number of pages."""
    indices: np.ndarray
    """Page ids, at least `indptr[R]` of them."""
    last_page_len: np.ndarray
    """(R,) tokens in each request's last page, 0 for a request without pages."""
    page_size: int
    """Tokens per page; 1 if the entries are slots."""

    @property
    def seq_lens(self) -> np.ndarray:
        """(R,) tokens of each request that a kernel reads."""
        before = np.maximum(np.diff(self.indptr) - 1, 0) * self.page_size
        lengths: np.ndarray = before + self.last_page_len
        return lengths

    def table(self) -> np.ndarray:
        """Return (R, W) the pages as a block table, -1 behind a request's last page."""
        counts = np.diff(self.indptr)
        table = np.full((len(counts), int(counts.max(initial=0))), -1, dtype=np.int64)
        table[np.arange(table.shape[1]) < counts[:, None]] = self.indices[: self.indptr[-1]]
        return table


def of_slots(indptr: np.ndarray, slots: np.ndarray) -> PageTable:
    """Return the page table of requests whose entries are slots."""
    return PageTable(indptr, slots, np.minimum(np.diff(indptr), 1), 1)


def page_table_violations(
    expected: ExpectedTokens,
    pages: PageTable,
    fields: tuple[str, str, str],
    first: np.ndarray | None = None,
) -> Iterator[Violation]:
    """Yield the first mistake of a kernel that reads the batch's keys through `pages`, if any.

    All tokens of the batch are queries; the causal mask is aligned to the bottom right.
    Request r sees positions from `first[r]` on (default 0). `fields` are the names of the
    offsets, the pages and the lengths of the last pages.
    """
    indptr, indices, last_page_len = fields
    mistake = _structure_mistake(expected, pages)
    if mistake:
        yield Violation(indptr, *mistake)
        return
    tokens = np.arange(len(expected.requests))
    mask = Mask(expected.batch.causal)
    required = expected.visible_keys(tokens, mask)
    if first is not None:
        required = required._replace(first=np.minimum(first[required.rows], required.stop))
    seen = _seen(expected, pages)
    for violation in visible_key_violations(expected, required, seen, tokens, mask):
        short = violation.field == "seq_lens"
        field = last_page_len if short and _has_right_pages(expected, pages) else indices
        yield violation._replace(field=indptr if short and field == indices else field)


def _structure_mistake(expected: ExpectedTokens, pages: PageTable) -> tuple[str, str] | None:
    """Return kind and detail if the offsets do not divide the pages by request, else None."""
    offsets, rows = pages.indptr, len(expected.computed)
    if not len(offsets) - 1 == len(pages.last_page_len) == rows:
        return "has other rows than the batch", f"{len(offsets) - 1} rows, the batch has {rows}"
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return "does not rise from 0", f"offsets {offsets.tolist()[:20]}"
    if offsets[-1] > len(pages.indices):
        return "points behind the pages", f"{offsets[-1]} pages, {len(pages.indices)} are there"
    return None


def _has_right_pages(expected: ExpectedTokens, pages: PageTable) -> bool:
    lengths = expected.computed + np.diff(expected.starts)
    return np.array_equal(np.diff(pages.indptr), -(-lengths // pages.page_size))


def _seen(expected: ExpectedTokens, pages: PageTable) -> VisibleKeys:
    """Return the keys that each token of the batch sees through the page table."""
    rows = expected.requests
    stop = pages.seq_lens[rows]
    if expected.batch.causal:
        lens = np.diff(expected.starts)
        stop = np.maximum(stop - lens[rows] + expected.indices + 1, 0)
    return VisibleKeys(rows, np.zeros_like(stop), stop, pages.table(), pages.page_size)


def written_violations(
    pages: PageTable,
    prefix_lens: np.ndarray,
    requests: np.ndarray,
    positions: np.ndarray,
    slots: np.ndarray,
    field: str,
) -> Iterator[Violation]:
    """Yield the first new token that is not written where its request reads it, if any.

    Token i, `positions[i]` of request `requests[i]`, is written to `slots[i]`. A slot that holds
    a token of a prefix, or two new tokens, is written over.
    """
    size, table = pages.page_size, pages.table()
    read = table[requests, positions // size] * size + positions % size
    wrong = np.flatnonzero(slots != read)
    if len(wrong):
        i = int(wrong[0])
        name = f"position {positions[i]} of request {requests[i]}"
        detail = f"{name} is written to slot {slots[i]} and read at slot {read[i]}"
        yield Violation(field, "writes a token where it is not read", detail)
        return
    held = _holds_prefix(table, size, prefix_lens, slots)
    if held.any():
        slot = int(slots[np.argmax(held)])
        yield Violation(field, "overwrites a cached key", f"slot {slot} holds a prefix's token")
    elif len(np.unique(slots)) != len(slots):
        yield Violation(field, "writes two tokens to one slot")


def _holds_prefix(
    table: np.ndarray, size: int, prefix_lens: np.ndarray, slots: np.ndarray
) -> np.ndarray:
    """Return (T,) True for slots that hold a token of a prefix.

    Only pages are laid out: a prefix may have 2^27 tokens.
    """
    counts = -(-prefix_lens // size)
    owners = np.repeat(np.arange(len(counts)), counts)
    columns = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    pages, place = np.unique(table[owners, columns], return_inverse=True)
    filled = np.zeros(len(pages), dtype=np.int64)
    np.maximum.at(filled, place, np.minimum(size, prefix_lens[owners] - columns * size))
    inside = np.flatnonzero(np.isin(slots // size, pages))
    own = slots[inside]
    held = np.zeros(len(slots), dtype=bool)
    held[inside] = own % size < filled[np.searchsorted(pages, own // size)]
    return held
