"""The batch of a case as an SVG picture: a row per request, a cell per token, a frame per block."""

from __future__ import annotations

from attnproof.harness.model.case import Batch
from attnproof.harness.report.pictures.batch_rows import (
    CELL,
    ROW,
    Drawn,
    draw_request,
    size_text,
    stale_boxes,
)
from attnproof.harness.report.pictures.batch_view import BatchView, RequestRow, view_batch
from attnproof.harness.report.pictures.focus import NO_MARKS, Focus, Marks
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, hatched, picture, rect, text
from attnproof.harness.report.shared.wording import listed, many

_LEFT = 156
"""Minimum width of the row labels, in pixels."""
_LEGEND = 880
"""Width above which the legend continues on another line, in pixels."""


def batch_picture(
    batch: Batch, prefix: str, focus: Focus | None = None, marks: Marks = NO_MARKS
) -> Markup:
    """Return the batch as SVG; `prefix` makes its ids unique, `focus` and `marks` are drawn.

    Computed tokens, query tokens, unused places of a block, stale block-table columns and
    graph padding differ in outline, fill and text, not in colour alone.
    """
    view = view_batch(batch, focus, marks)
    body, right, y = [], 0.0, 4.0
    labels = max((len(size_text(row)) for row in view.rows), default=0)
    left = max(_LEFT, labels * CHARACTER + 24)
    if view.above:
        body.append(text(0, y + 12, f"⋮ {view.above}", "t soft"))
        y += 24
    for row in view.rows:
        drawn = draw_request(row, left, y, prefix)
        if row.focused:
            body.append(rect(0, y, drawn.right, ROW - 4, "focus-row"))
        body.append(drawn.markup)
        right, y = max(right, drawn.right), y + ROW
    if view.below:
        body.append(text(0, y + 12, f"⋮ {view.below}", "t soft"))
        y += 28
    for drawn in _padding(view, left, y, prefix):
        body.append(drawn.markup)
        right, y = max(right, drawn.right), y + ROW - 10
    legend, y = _legend(view, y + 4, prefix)
    body.append(legend.markup)
    width = max(right, legend.right, left + 200) + 4
    return picture(
        width, y + 22, f"Batch: {view.facts}", describe(view), "".join(body), f"{prefix}-batch"
    )


def describe(view: BatchView) -> str:
    """Return the picture in words, row by row."""
    rows = [
        f"Request {row.number}: {many(row.computed, 'computed token')}, "
        f"{many(row.query, 'query token')}, blocks {_blocks(row)}"
        f"{', with the first difference' if row.focused else ''}."
        for row in view.rows
    ]
    rest = [f"{part.capitalize()}." for part in (view.above, view.below) if part]
    if view.padded_rows:
        rest.append(f"{many(view.padded_rows, 'padded row')} without query and sequence.")
    if view.padded_tokens:
        rest.append(f"{many(view.padded_tokens, 'padding token')} with slot -1.")
    if view.spare_slots:
        rest.append(f"{many(view.spare_slots, 'stale slot')} after them.")
    return " ".join([*rows, *rest]) or "A batch without requests."


def _blocks(row: RequestRow) -> str:
    return listed([str(block) for block in row.blocks], 8) or "none"


def _padding(view: BatchView, left: float, y: float, prefix: str) -> list[Drawn]:
    """Draw a row for padded requests, and one for the tokens after the batch."""
    drawn = []
    if view.padded_rows:
        label = text(0, y + 22, many(view.padded_rows, "padded row"), "t strong")
        label += text(left, y + 22, "q 0 · s 0", "t soft")
        words = "stale column" if view.columns == 1 else "stale columns"
        words += " each" if view.padded_rows > 1 else ""
        stale = stale_boxes(view.columns, left + 11 * CHARACTER, y + 7, words, prefix)
        drawn.append(Drawn(label + stale.markup, stale.right))
        y += ROW - 10
    if view.padded_tokens or view.spare_slots or view.logits_padding:
        parts, x = [text(0, y + 22, "after the batch", "t strong")], left
        for _ in range(min(view.padded_tokens, 3)):
            parts.append(rect(x, y + 7, CELL - 1, CELL, "padding"))
            parts.append(text(x + (CELL - 1) / 2, y + 23, "-1", "t middle"))
            x += CELL
        if view.padded_tokens:
            words = f"{many(view.padded_tokens, 'padding token')}, slot -1"
            parts.append(text(x + 3, y + 22, words, "t soft"))
            x += (len(words) + 2) * CHARACTER
        logits = "stale logits index" if view.logits_padding == 1 else "stale logits indices"
        slots = "stale slot" if view.spare_slots == 1 else "stale slots"
        for count, words in ((view.spare_slots, slots), (view.logits_padding, logits)):
            stale = stale_boxes(count, x, y + 7, words, prefix)
            parts.append(stale.markup)
            x = stale.right
        drawn.append(Drawn("".join(parts), x))
    return drawn


def _legend(view: BatchView, y: float, prefix: str) -> tuple[Drawn, float]:
    """Draw each kind of cell in this picture with its name; return the y of the last line too."""
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
        ("cut", view.mark, any(row.marks for row in view.rows)),
        ("focus-row", "affected request", any(row.focused for row in view.rows)),
        ("focus", "first difference", any(r.focus_position is not None for r in view.rows)),
    ]
    parts, x, right = [], 0.0, 0.0
    for kind, words, used in entries:
        if not used:
            continue
        if x > _LEGEND:
            x, y = 0.0, y + 20
        if kind == "stale":
            parts.append(hatched(x, y, 12, 12, kind, f"{prefix}-batch"))
        elif kind == "cut":
            parts.append(rect(x + 5, y - 2, 3, 16, kind))
        elif kind == "sampled":
            parts.append(rect(x, y, 12, 12, "query") + rect(x + 1.5, y + 7, 9, 3, kind))
        else:
            parts.append(rect(x, y, 12, 12, kind))
        parts.append(text(x + 17, y + 10, words, "t soft"))
        x += 17 + (len(words) + 2) * CHARACTER
        right = max(right, x)
    return Drawn("".join(parts), right), y
