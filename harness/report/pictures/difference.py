"""A wrong field as an SVG picture: the reference's elements above the candidate's."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.difference_view import (
    Cell,
    DifferenceView,
    Line,
    index_text,
    view_difference,
)
from attnproof.harness.report.pictures.svg import (
    CHARACTER,
    Markup,
    drawn,
    hatched,
    picture,
    rect,
    text,
)

_COLUMNS = 126
"""Characters in the cells of a line."""
_WORDS = 78
"""Width of the words "expected" and "got", in pixels."""
_CELL = 24
"""Height of a cell, in pixels."""


class FieldPicture(NamedTuple):
    """The picture of one wrong field."""

    name: str
    sentence: str
    types: str
    svg: str


def field_picture(difference: Difference, prefix: str) -> FieldPicture:
    """Return one wrong field with its sentence, its types and its picture."""
    types = difference.expected_type
    if difference.expected_type != difference.got_type:
        types = f"expected {difference.expected_type}, got {difference.got_type}"
    field = difference.field
    sentence = attempt("the sentence", lambda: view_difference(difference, 80).sentence, str)
    svg = drawn(f"the picture of {field}", lambda: difference_picture(difference, prefix))
    return FieldPicture(field, sentence, types, svg)


def difference_picture(difference: Difference, prefix: str) -> Markup:
    """Return one field as SVG; wrong elements are hatched, framed and marked with ≠."""
    view = view_difference(difference, _COLUMNS, separator=3)
    label = max((len(line.label) for line in view.lines), default=0)
    drawing = _Drawing(view, prefix, (label + 1) * CHARACTER if label else 0.0)
    drawing.note(view.above)
    for line in view.lines:
        drawing.line(line)
    if not view.lines:
        drawing.note("both sides are empty")
    drawing.note(view.below)
    title = f"{view.field}: expected above, got below"
    body = "".join(drawing.parts)
    return picture(drawing.width, drawing.y + 4, title, _describe(view), body, prefix)


def _describe(view: DifferenceView) -> str:
    """Return the first dozen wrong elements in words."""
    wrong = [cell for line in view.lines for cell in line.cells if cell.wrong][:12]
    places = [
        f"{index_text(cell.at) if cell.at else view.field}: expected {cell.expected}, "
        f"got {cell.got}"
        for cell in wrong
    ]
    return f"{view.sentence}. {'; '.join(places)}"


class _Drawing:
    """A drawing of lines of cells, from top to bottom."""

    def __init__(self, view: DifferenceView, prefix: str, label: float) -> None:
        sides = [side or "" for line in view.lines for cell in line.cells for side in cell[1:3]]
        self.view, self.prefix, self.label = view, prefix, label
        self.cell = max(30.0, max(map(len, sides), default=0) * CHARACTER + 12)
        self.parts: list[Markup] = []
        self.y = 2.0
        self.width = 320.0
        self.header: tuple[str, ...] = ()

    def note(self, words: str) -> None:
        """Draw a line of text in the place of cells that are left out."""
        if words:
            self.parts.append(text(0, self.y + 12, f"⋮ {words}", "t soft"))
            self.width = max(self.width, (len(words) + 3) * CHARACTER)
            self.y += 24
            self.header = ()

    def line(self, line: Line) -> None:
        """Draw expected above got; draw a line without a difference once."""
        left = self.label + _WORDS
        if not self.view.scalar and line.indices != self.header:
            self._indices(line, left)
        self.parts.append(text(0, self.y + 16, line.label, "t strong") if line.label else "")
        words = ("expected", "got") if line.wrong else ("both",)
        for row, word in enumerate(words):
            style = "t strong" if word == "got" else "t soft"
            self.parts.append(text(self.label, self.y + 16 + row * (_CELL + 1), word, style))
        for i, cell in enumerate(line.cells):
            self.parts.append(self._cell(cell, left + i * (self.cell + 1), line.wrong))
        self.width = max(self.width, left + len(line.cells) * (self.cell + 1) + 4)
        self.y += 2 * _CELL + 18 if line.wrong else _CELL + 4

    def _indices(self, line: Line, left: float) -> None:
        self.y += 2
        for i, index in enumerate(line.indices):
            x = left + i * (self.cell + 1) + self.cell / 2
            self.parts.append(text(x, self.y + 10, index, "t index"))
        self.y += 16
        self.header = line.indices

    def _cell(self, cell: Cell, x: float, both: bool) -> Markup:
        """Draw one element, with ≠ below if it is wrong."""
        middle, y, low = x + self.cell / 2, self.y, self.y + _CELL + 1
        size = (self.cell, _CELL)
        above = rect(x, y, *size, "right" if cell.wrong else "equal")
        above += text(middle, y + 16, cell.expected or "none", "t middle")
        if not both:
            return above
        if not cell.wrong:
            below = rect(x, low, *size, "equal")
            return above + below + text(middle, low + 16, cell.got or "none", "t middle")
        below = hatched(x, low, *size, "wrong", self.prefix)
        below += rect(x, low, *size, "focus" if cell is self.view.first else "frame")
        below += text(middle, low + 16, cell.got or "none", "t middle halo")
        return above + below + text(middle, low + _CELL + 12, "≠", "t sign middle")
