"""What of a batch is drawn: the same choice for the SVG picture and the terminal.

Big batches are cut to the rows and tokens around the first difference; whatever is left
out is counted and said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from harness.model.case import Batch
from harness.model.run import Difference

from .difference_view import first_wrong
from .wording import many

Kind = Literal["computed", "query", "unused"]

MAX_ROWS = 12
"""Rows drawn of a batch."""
MAX_CELLS = 64
"""Tokens drawn of a row before its middle is left out."""


class Focus(NamedTuple):
    """Where in the batch the first difference lies: a row, and a token of it if known."""

    row: int
    token: int | None
    """Index into the batch's query tokens."""


class RequestRow(NamedTuple):
    """One request: token positions in blocks."""

    number: int
    query: int
    computed: int
    blocks: tuple[int, ...]
    block_size: int
    first_token: int
    """Index of its first query token in the batch."""
    stale_columns: int
    sampled: frozenset[int]
    """Positions whose logits are sampled."""
    note: str
    focused: bool
    focus_position: int | None
    pieces: tuple[range, ...]
    """Ranges of positions that are drawn; what lies between them is left out."""

    @property
    def length(self) -> int:
        """Sequence length: computed and query tokens."""
        return self.computed + self.query

    @property
    def capacity(self) -> int:
        """Positions that the row's blocks can hold."""
        return max(len(self.blocks) * self.block_size, self.length)

    def kind(self, position: int) -> Kind:
        """What lies at a position of the row's blocks."""
        if position >= self.length:
            return "unused"
        return "query" if position >= self.computed else "computed"


class BatchView(NamedTuple):
    """The rows that are drawn, and what is said of the rest."""

    facts: str
    rows: tuple[RequestRow, ...]
    above: str
    """What is left out above the rows, "" for nothing."""
    below: str
    padded_rows: int
    columns: int
    """Width of the block table: all of a padded row's columns are stale."""
    padded_tokens: int
    spare_slots: int
    logits_padding: int


def view_batch(batch: Batch, focus: Focus | None = None) -> BatchView:
    """Choose what to draw of `batch`, around `focus` when it has too many rows."""
    columns = max((len(blocks) for blocks in batch.blocks), default=0) + batch.spare_columns
    starts = [0, *accumulate(batch.query_lens)]
    first, last = 0, batch.num_requests
    if last > MAX_ROWS:
        middle = focus.row if focus else 0
        first = min(max(0, middle - MAX_ROWS // 2), last - MAX_ROWS)
        last = first + MAX_ROWS
    return BatchView(
        facts=batch_facts(batch),
        rows=tuple(_row(batch, r, starts, columns, focus) for r in range(first, last)),
        above=_left_out(batch, range(first)),
        below=_left_out(batch, range(last, batch.num_requests)),
        padded_rows=batch.padded_requests,
        columns=columns,
        padded_tokens=batch.padded_tokens,
        spare_slots=batch.spare_slots,
        logits_padding=batch.logits_padding if batch.logits_indices is not None else 0,
    )


def batch_facts(batch: Batch) -> str:
    """The batch in one line."""
    facts = [
        f"block size {batch.block_size:,}",
        many(batch.num_requests, "request"),
        many(batch.num_tokens, "query token"),
    ]
    if batch.padded_requests:
        facts.append(many(batch.padded_requests, "padded row"))
    if batch.padded_tokens:
        facts.append(many(batch.padded_tokens, "padding token"))
    facts.append(f"{batch.dtype} offsets and lengths")
    if batch.strided:
        facts.append("non-contiguous tensors")
    if batch.query_slack:
        facts.append(f"max_query_len {batch.query_slack:,} above the longest query")
    if batch.seq_slack:
        facts.append(f"max_seq_len {batch.seq_slack:,} above the longest sequence")
    if not batch.causal:
        facts.append("not causal")
    return ", ".join(facts)


def find_focus(batch: Batch, differences: Sequence[Difference]) -> Focus | None:
    """The row and token that the first wrong element belongs to, None if it can't be told.

    Only fields of the batch itself can be mapped: the parts of a split or the virtual
    batches of local attention number their rows anew.
    """
    wrong = next((difference for difference in differences if not difference.equal), None)
    place = first_wrong(wrong) if wrong else None
    if wrong is None or not place or not re.fullmatch(r"\w+", wrong.field):
        return None
    length, index = _length(wrong.expected), place[0]
    starts = [0, *accumulate(batch.query_lens)]
    rows = batch.num_requests
    if "slot" in wrong.field and length >= batch.num_tokens > index:
        row = next(r for r in range(rows) if index < starts[r + 1])
        return Focus(row, index)
    if "query_start_loc" in wrong.field and rows < length <= rows + batch.padded_requests + 1:
        return Focus(min(max(0, index - 1), rows - 1), None) if rows else None
    by_row = wrong.field.startswith(("seq_lens", "num_computed", "block_table", "encoder_", "dcp_"))
    if by_row and rows <= length <= rows + batch.padded_requests and index < rows:
        return Focus(index, None)
    return None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple) else 0


def _row(batch: Batch, r: int, starts: list[int], columns: int, focus: Focus | None) -> RequestRow:
    query, computed, blocks = batch.query_lens[r], batch.computed_lens[r], batch.blocks[r]
    token = focus.token if focus and focus.row == r else None
    position = None if token is None else computed + token - starts[r]
    sampled = frozenset(
        computed + index - starts[r]
        for index in batch.logits_indices or ()
        if starts[r] <= index < starts[r + 1]
    )
    capacity = max(len(blocks) * batch.block_size, computed + query)
    notes = []
    if batch.encoder_seq_lens is not None:
        notes.append(f"encoder {batch.encoder_seq_lens[r]:,}")
    if batch.dcp_local_seq_lens is not None:
        notes.append(f"dcp-local {batch.dcp_local_seq_lens[r]:,}")
    return RequestRow(
        number=r,
        query=query,
        computed=computed,
        blocks=blocks,
        block_size=batch.block_size,
        first_token=starts[r],
        stale_columns=columns - len(blocks),
        sampled=sampled,
        note=", ".join(notes),
        focused=focus is not None and focus.row == r,
        focus_position=position,
        pieces=_pieces(capacity, computed, computed + query, position),
    )


def _pieces(capacity: int, computed: int, length: int, focus: int | None) -> tuple[range, ...]:
    """All positions if they fit, else those around the row's edges and the focus."""
    if capacity <= MAX_CELLS:
        return (range(capacity),) if capacity else ()
    around = [(0, 3), (computed - 4, computed + 8), (length - 6, length + 2)]
    if focus is not None:
        around.append((focus - 4, focus + 5))
    pieces: list[range] = []
    for low, high in sorted((max(0, low), min(high, capacity)) for low, high in around):
        # A hole of two cells is no shorter than the sign that says so.
        if pieces and low <= pieces[-1].stop + 2:
            pieces[-1] = range(pieces[-1].start, max(high, pieces[-1].stop))
        else:
            pieces.append(range(low, high))
    if pieces[-1].stop + 2 >= capacity:
        pieces[-1] = range(pieces[-1].start, capacity)
    return tuple(pieces)


def _left_out(batch: Batch, rows: range) -> str:
    if not rows:
        return ""
    tokens = sum(batch.query_lens[rows.start : rows.stop])
    which = f"request {rows[0]}" if len(rows) == 1 else f"requests {rows[0]:,} to {rows[-1]:,}"
    return f"{which} not drawn ({many(len(rows), 'row')}, {many(tokens, 'query token')})"
