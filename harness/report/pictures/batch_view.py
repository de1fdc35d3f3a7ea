"""The part of a batch that is drawn, for the SVG picture and the terminal.

Of a big batch only the rows and tokens around the first difference are drawn; the others are
counted.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Literal, NamedTuple

from attnproof.harness.model.case import Batch
from attnproof.harness.report.pictures.focus import NO_MARKS, Focus, Marks
from attnproof.harness.report.shared.wording import many

Kind = Literal["computed", "query", "unused"]

MAX_ROWS = 12
"""Maximum number of rows drawn of a batch."""
MAX_CELLS = 36
"""Maximum number of tokens drawn of a row; the middle of a longer row is left out."""


class RequestRow(NamedTuple):
    """One request as token positions in blocks."""

    number: int
    query: int
    computed: int
    blocks: tuple[int, ...]
    block_size: int
    first_token: int
    """Index of the request's first query token in the batch."""
    stale_columns: int
    sampled: frozenset[int]
    """Positions whose logits are sampled."""
    marks: frozenset[int]
    """Positions at which a slice or a chunk starts."""
    note: str
    focused: bool
    focus_position: int | None
    pieces: tuple[range, ...]
    """Ranges of positions that are drawn; positions between them are left out."""

    @property
    def length(self) -> int:
        """Sequence length: computed and query tokens."""
        return self.computed + self.query

    @property
    def capacity(self) -> int:
        """Positions that the row's blocks can hold."""
        return max(len(self.blocks) * self.block_size, self.length)

    def kind(self, position: int) -> Kind:
        """Return the kind of a position in the row's blocks."""
        if position >= self.length:
            return "unused"
        return "query" if position >= self.computed else "computed"


class BatchView(NamedTuple):
    """The rows that are drawn, and the counts of the rest."""

    facts: str
    rows: tuple[RequestRow, ...]
    above: str
    """Sentence on the requests left out above the rows, "" for none."""
    below: str
    padded_rows: int
    columns: int
    """Width of the block table; all columns of a padded row are stale."""
    padded_tokens: int
    spare_slots: int
    logits_padding: int
    mark: str
    """Meaning of the rows' marks, for the legend."""


def view_batch(batch: Batch, focus: Focus | None = None, marks: Marks = NO_MARKS) -> BatchView:
    """Choose the rows of `batch` to draw: those around `focus` if there are too many."""
    columns = max((len(blocks) for blocks in batch.blocks), default=0) + batch.spare_columns
    starts = [0, *accumulate(batch.query_lens)]
    first, last = 0, batch.num_requests
    if last > MAX_ROWS:
        middle = focus.row if focus else 0
        first = min(max(0, middle - MAX_ROWS // 2), last - MAX_ROWS)
        last = first + MAX_ROWS
    return BatchView(
        facts=f"{batch_size(batch.num_requests, batch.num_tokens)}, {batch_facts(batch)}",
        rows=tuple(_row(batch, r, starts, columns, focus, marks) for r in range(first, last)),
        above=_left_out(batch, range(first)),
        below=_left_out(batch, range(last, batch.num_requests)),
        padded_rows=batch.padded_requests,
        columns=columns,
        padded_tokens=batch.padded_tokens,
        spare_slots=batch.spare_slots,
        logits_padding=batch.logits_padding if batch.logits_indices is not None else 0,
        mark=marks.meaning,
    )


def batch_size(requests: int, tokens: int) -> str:
    """Return the size, such as "3 requests and 24 query tokens"."""
    return f"{many(requests, 'request')} and {many(tokens, 'query token')}"


def batch_facts(batch: Batch) -> str:
    """Return the properties of the batch other than its size."""
    facts = [f"block size {batch.block_size:,}"]
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
    if batch.subclassed:
        facts.append("of a subclass with fields of its own")
    return ", ".join(facts)


def _row(
    batch: Batch, r: int, starts: list[int], columns: int, focus: Focus | None, marks: Marks
) -> RequestRow:
    query, computed, blocks = batch.query_lens[r], batch.computed_lens[r], batch.blocks[r]
    capacity = max(len(blocks) * batch.block_size, computed + query)
    # Added to a token's index in the batch, it gives the position in the sequence.
    shift = computed - starts[r]
    tokens = range(starts[r], starts[r + 1])
    token = focus.token if focus and focus.row == r else None
    position = None if token is None else token + shift
    return RequestRow(
        number=r,
        query=query,
        computed=computed,
        blocks=blocks,
        block_size=batch.block_size,
        first_token=starts[r],
        stale_columns=columns - len(blocks),
        sampled=frozenset(i + shift for i in batch.logits_indices or () if i in tokens),
        marks=frozenset(i + shift for i in marks.tokens if i in tokens)
        | frozenset(range(marks.chunk, computed + query, marks.chunk) if marks.chunk else ()),
        note=_note(batch, r),
        focused=focus is not None and focus.row == r,
        focus_position=position,
        pieces=_pieces(capacity, computed, computed + query, position),
    )


def _note(batch: Batch, r: int) -> str:
    """Return the row's other lengths, "" for none."""
    notes = []
    if batch.encoder_seq_lens is not None:
        notes.append(f"encoder {batch.encoder_seq_lens[r]:,}")
    if batch.dcp_local_seq_lens is not None:
        notes.append(f"dcp-local {batch.dcp_local_seq_lens[r]:,}")
    return ", ".join(notes)


def _pieces(capacity: int, computed: int, length: int, focus: int | None) -> tuple[range, ...]:
    """Return all positions if they fit, else those around the row's edges and the focus."""
    if capacity <= MAX_CELLS:
        return (range(capacity),) if capacity else ()
    around = [(0, 2), (computed - 3, computed + 5), (length - 4, length + 1)]
    if focus is not None:
        around.append((focus - 3, focus + 4))
    pieces: list[range] = []
    for low, high in sorted((max(0, low), min(high, capacity)) for low, high in around):
        # A gap of two cells is no wider than the text that would replace it.
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
