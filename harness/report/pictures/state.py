"""The fields that a step of a sequence changed, as an SVG picture of the new values."""

from __future__ import annotations

from attnproof.harness.escaping import escape_line
from attnproof.harness.report.pictures.changes import Change, change_text
from attnproof.harness.report.pictures.difference_view import Cell, Line
from attnproof.harness.report.pictures.sequence_view import StepView
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, picture, rect, text
from attnproof.harness.report.shared.wording import many

_CELL = 24
"""Height of a cell, in pixels."""
_LEAST = 30.0
"""Minimum width of a cell, in pixels."""
_NAME = 40
"""Maximum number of characters of a field's name."""


def state_picture(step: StepView, prefix: str) -> Markup:
    """Return the changed fields of a step as SVG, "" for none.

    A changed element has a strong frame and a bar, a removed one a dashed frame and a dash; its
    unchanged neighbours are drawn for orientation.
    """
    if not step.changes:
        return ""
    drawing = _Drawing(max(len(_name(change)) for change in step.changes))
    for change in step.changes:
        drawing.change(change)
    title = f"Changed by step {step.number}: {step.label}"
    words = "; ".join(f"{change.name} {change_text(change)}" for change in step.changes)
    body = "".join(drawing.parts)
    return picture(drawing.width, drawing.y + 2, title, words, body, prefix, hatched=False)


def _name(change: Change) -> str:
    name = escape_line(change.name)
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


class _Drawing:
    """A drawing of fields, from top to bottom."""

    def __init__(self, longest: int) -> None:
        self.left = (longest + 2) * CHARACTER
        self.parts: list[Markup] = []
        self.y = 2.0
        self.width = 240.0

    def change(self, change: Change) -> None:
        """Draw the field's name, and its lines to the right."""
        scalar = len(change.lines) == 1 and not change.lines[0].cells[0].at
        top = self.y + (16 if scalar else 30)
        self.parts.append(text(0, top, _name(change), "t strong"))
        for line in change.lines:
            if scalar:
                self._scalar(line.cells[0], change.fresh)
            else:
                self._line(line)
        if change.more:
            words = f"⋮ {many(change.more, 'more element')} changed"
            self.parts.append(text(self.left, self.y + 10, words, "t soft"))
            self.y += 18

    def _scalar(self, cell: Cell, fresh: bool) -> None:
        """Draw the old value, an arrow, and the new value."""
        x = self.left
        if not fresh:
            width = _width(cell.expected)
            self.parts.append(rect(x, self.y, width, _CELL, "equal"))
            self.parts.append(text(x + width / 2, self.y + 16, cell.expected or "", "t middle"))
            self.parts.append(text(x + width + 5, self.y + 16, "→", "t"))
            x += width + 20
        width = _width(cell.got)
        self._changed(cell, x, width)
        self._below(x + width)

    def _line(self, line: Line) -> None:
        """Draw indices, and the elements below them."""
        width = max(max(_width(cell.expected), _width(cell.got)) for cell in line.cells)
        label = (len(line.label) + 1) * CHARACTER if line.label else 0.0
        if line.label:
            self.parts.append(text(self.left, self.y + 30, line.label, "t soft"))
        x = self.left + label
        top, self.y = self.y + 10, self.y + 14
        for cell, index in zip(line.cells, line.indices, strict=True):
            self.parts.append(text(x + width / 2, top, index, "t index"))
            if cell.wrong:
                self._changed(cell, x, width)
            else:
                self.parts.append(rect(x, self.y, width, _CELL, "equal"))
                self.parts.append(text(x + width / 2, self.y + 16, cell.got or "", "t middle"))
            x += width + 1
        self._below(x)

    def _changed(self, cell: Cell, x: float, width: float) -> None:
        if cell.got is None:
            self.parts.append(rect(x, self.y, width, _CELL, "unused"))
            self.parts.append(text(x + width / 2, self.y + 16, "-", "t middle"))
            return
        self.parts.append(rect(x, self.y, width, _CELL, "changed"))
        self.parts.append(rect(x + 2, self.y + _CELL - 4, width - 4, 3, "bar"))
        self.parts.append(text(x + width / 2, self.y + 15, cell.got, "t middle"))

    def _below(self, right: float) -> None:
        self.width = max(self.width, right + 4)
        self.y += _CELL + 6


def _width(content: str | None) -> float:
    return max(_LEAST, len(content or "") * CHARACTER + 12)
