"""Marked places in the picture of a batch: the first difference, and the cuts of the case."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.difference_view import first_wrong

# Prefixes of fields with one element per row.
_CHILD = re.compile(r"\[(\d+)\]\.(.*)")
_BY_ROW = ("seq_lens", "num_computed", "block_table", "encoder_", "dcp_")


class Focus(NamedTuple):
    """Place of the first difference in the batch: a row, and one of its tokens if known."""

    row: int
    token: int | None
    """Index among the batch's query tokens."""


class Marks(NamedTuple):
    """Cuts through the rows, given by the case's other arguments."""

    tokens: frozenset[int]
    """Query tokens of the batch at which a part starts."""
    chunk: int
    """Positions between two cuts of every row, 0 for no such cuts."""
    meaning: str


NO_MARKS = Marks(frozenset(), 0, "")


def find_marks(case: Case) -> Marks:
    """Return the starts of micro-batch slices, or of attention chunks."""
    params = case.params
    chunk = params.get("attn_chunk_size")
    if isinstance(chunk, int) and chunk > 0:
        return Marks(frozenset(), chunk, "an attention chunk starts")
    cuts = params.get("cuts")
    if not isinstance(cuts, list | tuple):
        return NO_MARKS
    bounds = {cut for cut in cuts if isinstance(cut, int) and cut > 0}
    return Marks(frozenset(bounds), 0, "a slice starts") if bounds else NO_MARKS


def find_focus(case: Case, differences: Sequence[Difference]) -> Focus | None:
    """Return the row and token of the first wrong element, None if unknown.

    Fields of the batch and of its micro-batch slices have a place. The virtual batches of local
    attention number their rows differently.
    """
    batch = case.batch
    wrong = next((difference for difference in differences if not difference.equal), None)
    if batch is None or wrong is None or not batch.num_requests:
        return None
    place = first_wrong(wrong)
    focus = _place(case, batch, wrong, place[0]) if place else None
    # With a single row there is no other that could be affected.
    alone = batch.num_requests == 1 and not batch.padded_requests
    return focus or (Focus(0, None) if alone else None)


def _place(case: Case, batch: Batch, wrong: Difference, index: int) -> Focus | None:
    """Return the row of the element with this index in the wrong field."""
    starts = [0, *accumulate(batch.query_lens)]
    rows, padded, length = batch.num_requests, batch.padded_requests, _length(wrong.expected)
    first, name = _slice_start(case, wrong.field)
    if first is None:
        name = wrong.field
        if name == "result" and "slot_mapping" in case.operation:
            name = "slot_mapping"
        if name == "slot_mapping" and length >= batch.num_tokens > index:
            return Focus(_row(starts, index), index)
        if name.startswith("query_start_loc") and rows < length <= rows + padded + 1:
            return Focus(min(max(0, index - 1), rows - 1), None)
        if name.startswith(_BY_ROW) and rows <= length <= rows + padded and index < rows:
            return Focus(index, None)
        return None
    if first >= batch.num_tokens:  # it begins in the padding
        return None
    if name == "slot_mapping":
        token = first + index
        return Focus(_row(starts, token), token) if token < batch.num_tokens else None
    index -= name.startswith("query_start_loc") and index > 0
    row = _row(starts, first) + index
    by_row = name.startswith((*_BY_ROW, "query_start_loc"))
    return Focus(row, None) if by_row and row < rows else None


def _slice_start(case: Case, field: str) -> tuple[int | None, str]:
    """Return the first token of the slice that the field belongs to, and the field's name there."""
    cuts, index = case.params.get("cuts"), case.params.get("index")
    child = _CHILD.match(field)
    if child:
        index, field = int(child[1]), child[2]
    if not isinstance(cuts, list | tuple) or not isinstance(index, int):
        return None, field
    bounds = [0, *cuts]
    known = 0 <= index < len(bounds) and isinstance(bounds[index], int)
    return (bounds[index], field) if known else (None, field)


def _row(starts: list[int], token: int) -> int:
    """Return the row of a query token."""
    return bisect_right(starts, token) - 1


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 0
