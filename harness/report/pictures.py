"""The batch of a case as an SVG picture: requests as rows, tokens as cells, blocks as groups."""

from __future__ import annotations

from typing import NamedTuple

from harness.model.case import Batch

from .batch_view import BatchView, Focus, RequestRow, view_batch
from .svg import CHARACTER, Markup, hatched, picture, rect, tag, text
from .wording import listed, many

_LEFT = 142
"""Width of the row labels."""
_CELL = 22
_ROW = 46
_GROUP = 5
"""Space between two blocks."""


class _Drawn(NamedTuple):
    """A part of the picture and where it ends on the right."""

    markup: Markup
    right: float


def batch_picture(batch: Batch, prefix: str, focus: Focus | None = None) -> Markup:
    """The batch as SVG; `prefix` makes its ids unique, `focus` is marked.

    Computed tokens, query tokens, unused places of a block, stale block-table columns and
    graph padding differ in outline, fill and text, not in colour alone.
    """
    view = view_batch(batch, focus)
    body, right, y = [], 0.0, 4.0
    if view.above:
        body.append(text(0, y + 12, f"⋮ {view.above}", "t soft"))
        y += 24
    for row in view.rows:
        drawn = _request(row, y, prefix)
        body.append(drawn.markup)
        right, y = max(right, drawn.right), y + _ROW
    if view.below:
        body.append(text(0, y + 12, f"⋮ {view.below}", "t soft"))
        y += 28
    for drawn in _padding(view, y, prefix):
        body.append(drawn.markup)
        right, y = max(right, drawn.right), y + _ROW - 10
    legend = _legend(view, y + 4, prefix)
    body.append(legend.markup)
    width = max(right, legend.right, _LEFT + 200) + 4
    return picture(
        width, y + 30, f"Batch: {view.facts}", describe(view), "".join(body), f"{prefix}-batch"
    )


def describe(view: BatchView) -> str:
    """The picture in words, row by row."""
    rows = [
        f"Request {row.number}: {many(row.computed, 'computed token')}, "
        f"{many(row.query, 'query token')}, blocks {_blocks(row)}"
        f"{', the first difference lies here' if row.focused else ''}."
        for row in view.rows
    ]
    rest = [f"{part}." for part in (view.above, view.below) if part]
    if view.padded_rows:
        rest.append(f"{many(view.padded_rows, 'padded row')} without query and sequence.")
    if view.padded_tokens:
        rest.append(f"{many(view.padded_tokens, 'padding token')} with slot -1.")
    if view.spare_slots:
        rest.append(f"{many(view.spare_slots, 'stale slot')} behind them.")
    return " ".join([*rows, *rest]) or "A batch without requests."


def _blocks(row: RequestRow) -> str:
    return listed([str(block) for block in row.blocks], 8) or "none"


def _request(row: RequestRow, y: float, prefix: str) -> _Drawn:
    """Label, blocks, stale columns and note of one request."""
    size = f"q {row.query:,} · c {row.computed:,} · s {row.length:,}"
    parts = [
        text(0, y + 22, f"request {row.number:,}", "t strong"),
        text(0, y + 36, size, "t soft"),
    ]
    if row.focused:
        parts.append(text(_LEFT - 16, y + 30, "▶", "t mark"))
    x, label_end = float(_LEFT), 0.0
    for previous, piece in zip((None, *row.pieces), row.pieces, strict=False):
        if previous is not None:
            gap = _gap(row, range(previous.stop, piece.start), x, y)
            parts.append(gap.markup)
            x = gap.right
        drawn, label_end = _piece(row, piece, x, y, label_end)
        parts.append(drawn.markup)
        x = drawn.right
    if row.pieces and row.pieces[-1].stop < row.capacity:
        gap = _gap(row, range(row.pieces[-1].stop, row.capacity), x, y)
        parts.append(gap.markup)
        x = gap.right
    if not row.length:
        parts.append(text(x, y + 31, "no tokens", "t soft"))
        x += 11 * CHARACTER
    elif not row.query:
        parts.append(text(x, y + 31, "no query", "t soft"))
        x += 10 * CHARACTER
    stale = _stale(row.stale_columns, x, y + 14, "stale", prefix)
    note = text(stale.right + 4, y + 31, row.note, "t soft") if row.note else ""
    end = stale.right + len(row.note) * CHARACTER
    return _Drawn("".join([*parts, stale.markup, note]), end)


def _piece(
    row: RequestRow, piece: range, x: float, y: float, label_end: float
) -> tuple[_Drawn, float]:
    """The cells of neighbouring positions, framed block by block, with the blocks' ids above."""
    parts, frames = [], []
    frame_start, block = x, piece.start // row.block_size
    for position in piece:
        if position // row.block_size != block:
            frames.append((frame_start, x, block))
            x += _GROUP
            frame_start, block = x, position // row.block_size
        parts.append(_cell(row, position, x, y + 14))
        x += _CELL
    frames.append((frame_start, x, block))
    for start, end, number in frames:
        parts.append(rect(start - 1.5, y + 12.5, end - start + 2, 25, "block"))
        label = f"block {row.blocks[number]}" if number < len(row.blocks) else "no block"
        if len(label) * CHARACTER > end - start:
            label = label.removeprefix("block ")
        if start >= label_end:
            parts.append(text(start, y + 8, label, "t soft"))
            label_end = start + (len(label) + 1) * CHARACTER
    return _Drawn("".join(parts), x + _GROUP), label_end


def _cell(row: RequestRow, position: int, x: float, y: float) -> Markup:
    """One position: query tokens carry their index in the batch."""
    kind = row.kind(position)
    cell = rect(x, y, _CELL - 1, _CELL, kind)
    if kind == "query":
        number = str(row.first_token + position - row.computed)
        if len(number) <= 3:
            cell += text(x + (_CELL - 1) / 2, y + 15, number, "t on-query")
        if position in row.sampled:
            cell += rect(x + 2, y + _CELL - 5, _CELL - 5, 3, "sampled")
    if position == row.focus_position:
        cell += rect(x, y, _CELL - 1, _CELL, "focus")
    return cell


def _gap(row: RequestRow, hidden: range, x: float, y: float) -> _Drawn:
    """How many positions are left out, by kind."""
    counts: dict[str, int] = {}
    edges = (0, row.computed, row.length, row.capacity)
    for kind, low, high in zip(("computed", "query", "unused"), edges, edges[1:], strict=False):
        count = min(high, hidden.stop) - max(low, hidden.start)
        if count > 0:
            counts[kind] = count
    words = "⋯ " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()) + " ⋯"
    return _Drawn(text(x, y + 29, words, "t soft"), x + len(words) * CHARACTER + 6)


def _stale(count: int, x: float, y: float, word: str, prefix: str) -> _Drawn:
    """Up to three hatched boxes and the number of them."""
    if count <= 0:
        return _Drawn("", x)
    boxes = "".join(
        hatched(x + i * 14, y + 3, 12, 16, "stale", f"{prefix}-batch") for i in range(min(count, 3))
    )
    x += min(count, 3) * 14 + 3
    label = f"{count:,} {word}"
    return _Drawn(boxes + text(x, y + 15, label, "t soft"), x + (len(label) + 1) * CHARACTER)


def _padding(view: BatchView, y: float, prefix: str) -> list[_Drawn]:
    """A row for padded requests and one for the tokens behind the batch."""
    drawn = []
    if view.padded_rows:
        label = text(0, y + 22, many(view.padded_rows, "padded row"), "t strong")
        label += text(_LEFT, y + 22, "q 0 · s 0", "t soft")
        words = "stale columns each" if view.padded_rows > 1 else "stale columns"
        stale = _stale(view.columns, _LEFT + 11 * CHARACTER, y + 7, words, prefix)
        drawn.append(_Drawn(label + stale.markup, stale.right))
        y += _ROW - 10
    if view.padded_tokens or view.spare_slots or view.logits_padding:
        parts, x = [text(0, y + 22, "behind the batch", "t strong")], float(_LEFT)
        for i in range(min(view.padded_tokens, 3)):
            parts.append(rect(x, y + 7, _CELL - 1, _CELL, "padding"))
            parts.append(text(x + 10.5, y + 22, "-1", "t middle") if i < 3 else "")
            x += _CELL
        if view.padded_tokens:
            words = f"{many(view.padded_tokens, 'padding token')}, slot -1"
            parts.append(text(x + 3, y + 22, words, "t soft"))
            x += (len(words) + 2) * CHARACTER
        for count, word in ((view.spare_slots, "slots"), (view.logits_padding, "logits indices")):
            stale = _stale(count, x, y + 7, f"stale {word}", prefix)
            parts.append(stale.markup)
            x = stale.right
        drawn.append(_Drawn("".join(parts), x))
    return drawn


def _legend(view: BatchView, y: float, prefix: str) -> _Drawn:
    """The kinds of cell that this picture shows, each with its name."""
    kinds = {row.kind(p) for row in view.rows for piece in row.pieces for p in piece}
    sampled = any(row.sampled for row in view.rows)
    stale = view.padded_rows or view.spare_slots or any(row.stale_columns for row in view.rows)
    entries = [
        ("computed", "computed token (in the cache)", "computed" in kinds),
        ("query", "query token, its index", "query" in kinds),
        ("sampled", "its logits are sampled", sampled),
        ("unused", "unused place in the block", "unused" in kinds),
        ("stale", "stale: must not be read", bool(stale)),
        ("padding", "graph padding", bool(view.padded_tokens)),
        ("focus", "first difference", any(r.focus_position is not None for r in view.rows)),
    ]
    parts, x = [], 0.0
    for kind, words, used in entries:
        if not used:
            continue
        if kind == "stale":
            parts.append(hatched(x, y, 12, 12, kind, f"{prefix}-batch"))
        elif kind == "sampled":
            parts.append(rect(x, y, 12, 12, "query") + rect(x + 1.5, y + 7, 9, 3, kind))
        else:
            parts.append(rect(x, y, 12, 12, kind))
        parts.append(text(x + 17, y + 10, words, "t soft"))
        x += 17 + (len(words) + 2) * CHARACTER
    return _Drawn(tag("g", "".join(parts)) if parts else "", x)
