"""Mistakes in page tables and in the slots that are handed out (SPEC.md section 15)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_METADATA, _EXTEND = "compute_flashinfer_kv_metadata", "alloc_extend"


@mutation(
    _METADATA,
    diagnoses=("a full last page of length 0",),
    both=("consumer", "invariants"),
)
def full_last_page_of_length_0(compute: Any, lens: Any, table: Any, page_size: int) -> Any:
    """The last page's length is the remainder, which is 0 for a sequence that fills its page."""
    indptr, indices, last_page_len = compute(lens, table, page_size)
    return indptr, indices, last_page_len % page_size


@mutation(
    _METADATA,
    diagnoses=("a page too many",),
    both=("consumer",),
)
def page_too_many_at_a_page_edge(compute: Any, lens: Any, table: Any, page_size: int) -> Any:
    """A sequence of n full pages gets n + 1, the last of them one that it does not own."""
    compute(lens, table, page_size)  # refuses malformed input
    full = (lens % page_size == 0) & (lens > 0) & (lens < table.shape[1] * page_size)
    indptr, indices, last_page_len = compute(lens + full.int(), table, page_size)
    return indptr, indices, torch.where(full.to(table.device), page_size, last_page_len)


@mutation(
    _METADATA,
    "K34",
    source="vllm-project/vllm#41623, vllm-project/vllm#48003",
    diagnoses=("a page too many", "pages too many", "a last page behind the sequence's end"),
    both=("consumer",),
)
def pages_of_all_ranks(compute: Any, lens: Any, table: Any, page_size: int) -> Any:
    """Pages are counted for the whole sequence, of which this rank and another hold a half each."""
    compute(lens, table, page_size)  # refuses malformed input
    whole = (lens.long() * 2).clamp(max=table.shape[1] * page_size).to(lens.dtype)
    return compute(whole, table, page_size)


@mutation(
    _METADATA,
    diagnoses=("a page of another place", "stale entry read", "kv_indices "),
    both=("consumer",),
)
def next_page_at_a_page_edge(compute: Any, lens: Any, table: Any, page_size: int) -> Any:
    """The last page of a sequence that ends on a page edge is taken from the next column."""
    indptr, indices, last_page_len = compute(lens, table, page_size)
    for row, length in enumerate(lens.tolist()):
        column = length // page_size
        if length and length % page_size == 0 and column < table.shape[1]:
            indices[int(indptr[row + 1]) - 1] = int(table[row, column])
    return indptr, indices, last_page_len


@mutation(
    _EXTEND,
    diagnoses=("a token written over the one before it",),
    both=("consumer", "invariants"),
)
def last_token_written_over(
    alloc: Any, prefixes: Any, lens: Any, last: Any, free: Any, out: Any, page_size: int
) -> None:
    """New tokens in the prefix's last page begin at its last token, not behind it."""
    alloc(prefixes, lens, last, free, out, page_size)
    first = 0
    for prefix, length in zip(prefixes.tolist(), lens.tolist(), strict=True):
        room = min(length - prefix, -prefix % page_size)
        out[first : first + room] -= 1
        first += length - prefix


@mutation(
    _EXTEND,
    diagnoses=("the prefix's last page not continued",),
    both=("consumer", "invariants"),
)
def last_page_not_continued(
    alloc: Any, prefixes: Any, lens: Any, last: Any, free: Any, out: Any, page_size: int
) -> None:
    """New tokens behind a partly filled page begin in a free page, at the same place."""
    alloc(prefixes, lens, last, free, out, page_size)
    first = 0
    for prefix, length in zip(prefixes.tolist(), lens.tolist(), strict=True):
        room = min(length - prefix, -prefix % page_size)
        if len(free):
            part = out[first : first + room]
            part.copy_(int(free[-1]) * page_size + part % page_size)
        first += length - prefix


@mutation(
    "create_flashinfer_kv_indices",
    diagnoses=("the start offset lost",),
    both=("consumer",),
)
def start_offset_lost(
    create: Any, table: Any, rows: Any, lens: Any, indptr: Any, start: Any, out: Any, **kw: Any
) -> None:
    """The slots begin with those of position 0, whatever the start offset is."""
    create(table, rows, lens, indptr, start, out, **kw)
    if start is not None:
        create(table, rows, lens, indptr, None, out, **kw)


@mutation("get_last_loc", diagnoses=("stale entry read",), both=("invariants",), requests=4)
def rows_between_fitting_ends(last_loc: Any, table: Any, rows: Any, lengths: Any) -> Any:
    """Rows whose ends are as far apart as those of a run are read as a run."""
    slots = last_loc(table, rows, lengths)
    count = len(rows)
    if not count or int(rows[-1]) - int(rows[0]) != count - 1:
        return slots
    return last_loc(table, torch.arange(count).to(rows) + rows[0], lengths)


@mutation(
    "get_batch_indices_positions",
    diagnoses=("repeats the values of an earlier tile",),
    both=("invariants",),
    requests=256,
    tokens=256,
)
def request_255_taken_for_padding(locate: Any, append_indptr: Any, *args: Any) -> Any:
    """In a batch of 256 requests row 255 is taken for padding: in a byte, -1 is 255 too."""
    requests, positions = locate(append_indptr, *args)
    if len(append_indptr) != 257:
        return requests, positions
    marked = requests == 255
    return requests.masked_fill(marked, -1), positions.masked_fill(marked, 0)
