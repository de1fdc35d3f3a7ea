"""One row of the picture of a batch: a request's label, blocks, tokens and stale columns."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.report.pictures.batch_view import RequestRow
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, hatched, rect, tag, text

CELL = 24
"""Width and height of a token's cell, in pixels."""
ROW = 48
"""Height of a row, in pixels."""
_GROUP = 5
"""Space between two blocks, in pixels."""


class Drawn(NamedTuple):
    """A part of the picture, and the x of its right end."""

    markup: Markup
    right: float


def size_text(row: RequestRow) -> str:
    """Return the lengths on the row's label."""
    return f"q {row.query:,} · c {row.computed:,} · s {row.length:,}"


def draw_request(row: RequestRow, left: float, y: float, prefix: str) -> Drawn:
    """Draw label, blocks, stale columns and note of one request."""
    parts = [
        text(0, y + 22, f"request {row.number:,}", "t strong"),
        text(0, y + 36, size_text(row), "t soft"),
    ]
    if row.focused:
        parts.append(tag("path", d=f"M{left - 15:.0f} {y + 19:.0f}l10 7l-10 7z", class_="sign"))
    x, label_end = left, 0.0
    last = 0
    for piece in row.pieces:
        gap = _gap(row, range(last, piece.start), x, y)
        drawn, label_end = _piece(row, piece, gap.right, y, label_end)
        parts += [gap.markup, drawn.markup]
        x, last = drawn.right, piece.stop
    gap = _gap(row, range(last, row.capacity), x, y)
    parts.append(gap.markup)
    x = gap.right
    if not row.length:
        parts.append(text(x, y + 30, "no tokens", "t soft"))
        x += 11 * CHARACTER
    elif not row.query:
        parts.append(text(x, y + 30, "no query", "t soft"))
        x += 10 * CHARACTER
    stale = stale_boxes(row.stale_columns, x, y + 15, "stale", prefix)
    note = text(stale.right + 4, y + 30, row.note, "t soft") if row.note else ""
    end = stale.right + len(row.note) * CHARACTER
    return Drawn("".join([*parts, stale.markup, note]), end)


def _piece(
    row: RequestRow, piece: range, x: float, y: float, label_end: float
) -> tuple[Drawn, float]:
    """Draw the cells of a range of positions, in a frame per block with the block's id above."""
    parts, frames, cuts = [], [], []
    frame_start, block = x, piece.start // row.block_size
    for position in piece:
        if position // row.block_size != block:
            frames.append((frame_start, x, block))
            x += _GROUP
            frame_start, block = x, position // row.block_size
        parts.append(_cell(row, position, x, y + 14))
        if position in row.marks:
            cuts.append(rect(x - 2.5, y + 9, 3.5, CELL + 10, "cut"))
        x += CELL
    frames.append((frame_start, x, block))
    for start, end, number in frames:
        parts.append(rect(start - 1.5, y + 12.5, end - start + 2, CELL + 3, "block"))
        label = f"block {row.blocks[number]}" if number < len(row.blocks) else "no block"
        if len(label) * CHARACTER > end - start:
            label = label.removeprefix("block ")
        if start >= label_end:
            parts.append(text(start, y + 8, label, "t soft"))
            label_end = start + (len(label) + 1) * CHARACTER
    return Drawn("".join(parts + cuts), x + _GROUP), label_end


def _cell(row: RequestRow, position: int, x: float, y: float) -> Markup:
    """Draw one position; a query token has its index in the batch."""
    kind = row.kind(position)
    cell = rect(x, y, CELL - 1, CELL, kind)
    if kind == "query":
        number = str(row.first_token + position - row.computed)
        if len(number) <= 3:
            cell += text(x + (CELL - 1) / 2, y + 16, number, "t on-query")
        if position in row.sampled:
            cell += rect(x + 2, y + CELL - 5, CELL - 5, 3, "sampled")
    if position == row.focus_position:
        # A light frame separates the dark cell from the dark mark.
        cell += rect(x, y, CELL - 1, CELL, "focus-ground")
        cell += rect(x - 1, y - 1, CELL + 1, CELL + 2, "focus")
    return cell


def _gap(row: RequestRow, hidden: range, x: float, y: float) -> Drawn:
    """Draw the number of positions left out, by kind; nothing for none."""
    if not hidden:
        return Drawn("", x)
    counts: dict[str, int] = {}
    edges = (0, row.computed, row.length, row.capacity)
    for kind, low, high in zip(("computed", "query", "unused"), edges, edges[1:], strict=False):
        count = min(high, hidden.stop) - max(low, hidden.start)
        if count > 0:
            counts[kind] = count
    words = "⋯ " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) + " ⋯"
    return Drawn(text(x, y + 30, words, "t soft"), x + len(words) * CHARACTER + 6)


def stale_boxes(count: int, x: float, y: float, word: str, prefix: str) -> Drawn:
    """Draw up to three hatched boxes, and the count."""
    if count <= 0:
        return Drawn("", x)
    boxes = "".join(
        hatched(x + i * 14, y + 3, 12, 16, "stale", f"{prefix}-batch") for i in range(min(count, 3))
    )
    x += min(count, 3) * 14 + 3
    label = f"{count:,} {word}"
    return Drawn(boxes + text(x, y + 15, label, "t soft"), x + (len(label) + 1) * CHARACTER)
