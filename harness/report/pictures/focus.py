"""Marked places in the picture of a batch: the first difference, and the cuts of the case."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from attnproof.harness.model.case import Case
from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.difference_view import first_wrong

# Prefixes of fields with one element per row.
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

    Only fields of the batch itself have a place: the parts of a split batch and the virtual
    batches of local attention number their rows differently.
    """
    batch = case.batch
    wrong = next((difference for difference in differences if not difference.equal), None)
    place = first_wrong(wrong) if wrong else None
    if batch is None or wrong is None or not place or not batch.num_requests:
        return None
    name, index, length = wrong.field, place[0], _length(wrong.expected)
    if name == "result" and "slot_mapping" in case.operation:
        name = "slot_mapping"
    starts = [0, *accumulate(batch.query_lens)]
    rows, padded = batch.num_requests, batch.padded_requests
    if name == "slot_mapping" and length >= batch.num_tokens > index:
        return Focus(next(r for r in range(rows) if index < starts[r + 1]), index)
    if name.startswith("query_start_loc") and rows < length <= rows + padded + 1:
        return Focus(min(max(0, index - 1), rows - 1), None)
    if name.startswith(_BY_ROW) and rows <= length <= rows + padded and index < rows:
        return Focus(index, None)
    return None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 0
