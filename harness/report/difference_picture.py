"""A wrong field as an SVG picture: the reference's elements above the candidate's."""

from __future__ import annotations

from harness.model.run import Difference

from .difference_view import Cell, DifferenceView, Line, index_text, view_difference
from .svg import CHARACTER, Markup, hatched, picture, rect, text

_COLUMNS = 104
"""Characters across the cells of a line."""
_LEFT = 84
"""Width of the words expected and got."""
_HEIGHT = 24


def difference_picture(difference: Difference, prefix: str) -> Markup:
    """One field as SVG; wrong elements are hatched, framed and marked with ≠."""
    view = view_difference(difference, _COLUMNS, separator=3)
    labels = max((len(line.label) for line in view.lines), default=0)
    left = _LEFT + (labels + 1) * CHARACTER * bool(labels)
    cell = _cell_width(view)
    body, y = [], 2.0
    if view.above:
        body.append(text(0, y + 11, f"⋮ {view.above}", "t soft"))
        y += 22
    for line in view.lines:
        body.append(_line(line, view, y, left, cell, prefix))
        y += 2 * _HEIGHT + (16 if not view.scalar else 0) + 14
    if view.below:
        body.append(text(0, y + 8, f"⋮ {view.below}", "t soft"))
        y += 20
    if not view.lines:
        body.append(text(0, y + 11, "both sides are empty; their types differ", "t soft"))
        y += 22
    widest = max((len(line.cells) for line in view.lines), default=0)
    words = max(len(view.above), len(view.below), 42) + 3
    width = max(left + widest * (cell + 1) + 16, words * CHARACTER)
    title = f"{view.field}: expected above, got below"
    return picture(width, y, title, _describe(view), "".join(body), prefix)


def _describe(view: DifferenceView) -> str:
    """The wrong elements in words, the first dozen of them."""
    wrong = [cell for line in view.lines for cell in line.cells if cell.wrong][:12]
    places = [
        f"{index_text(cell.at) if cell.at else view.field}: expected {cell.expected}, "
        f"got {cell.got}"
        for cell in wrong
    ]
    return f"{view.sentence}. {'; '.join(places)}"


def _cell_width(view: DifferenceView) -> float:
    cells = [cell for line in view.lines for cell in line.cells]
    longest = max((len(side or "") for cell in cells for side in cell[1:3]), default=1)
    return max(30.0, longest * CHARACTER + 12)


def _line(
    line: Line, view: DifferenceView, y: float, left: float, cell: float, prefix: str
) -> Markup:
    """Indices, expected, got: three rows of text, aligned."""
    parts = []
    if not view.scalar:
        for i, item in enumerate(line.cells):
            x = left + i * (cell + 1) + cell / 2
            parts.append(text(x, y + 10, str(item.at[-1]) if item.at else "", "t index"))
        y += 16
    if line.label:
        parts.append(text(0, y + _HEIGHT + 4, line.label, "t strong"))
    words = left - _LEFT
    parts.append(text(words, y + 16, "expected", "t soft"))
    parts.append(text(words, y + _HEIGHT + 17, "got", "t strong" if line.wrong else "t soft"))
    for i, item in enumerate(line.cells):
        parts.append(_cell(item, left + i * (cell + 1), y, cell, prefix, item is view.first))
    return "".join(parts)


def _cell(item: Cell, x: float, y: float, width: float, prefix: str, first: bool) -> Markup:
    """One element: expected above, got below, a ≠ between them when they differ."""
    middle = x + width / 2
    low = y + _HEIGHT + 1
    if item.wrong:
        above = rect(x, y, width, _HEIGHT, "right")
        below = hatched(x, low, width, _HEIGHT, "wrong", prefix)
        below += rect(x, low, width, _HEIGHT, "focus" if first else "frame")
    else:
        above = rect(x, y, width, _HEIGHT, "equal")
        below = rect(x, low, width, _HEIGHT, "equal")
    above += text(middle, y + 16, "none" if item.expected is None else item.expected, "t middle")
    style = "t middle halo" if item.wrong else "t middle"
    below += text(middle, low + 16, "none" if item.got is None else item.got, style)
    if item.wrong:
        below += text(middle, low + _HEIGHT + 10, "≠", "t mark middle")
    return above + below
