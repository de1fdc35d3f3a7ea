"""The part of a wrong field that is drawn: aligned cells around the first difference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.run import Difference
from attnproof.harness.model.text import float_text, float_texts
from attnproof.harness.report.shared.wording import many

Index = tuple[int, ...]

MAX_LINES = 8
"""Maximum number of lines drawn of one field."""
_BEFORE = 2
"""Lines drawn before the first difference."""
_TEXT = 14
"""Maximum number of characters of a value in a cell."""


class Cell(NamedTuple):
    """One element on both sides; None on a side that has no such element."""

    at: Index
    expected: str | None
    got: str | None
    wrong: bool


class Line(NamedTuple):
    """Neighbouring elements of one row of a field."""

    label: str
    """Index of the row, such as "[3]"; "" for a one-dimensional field or a scalar."""
    cells: tuple[Cell, ...]

    @property
    def wrong(self) -> bool:
        """True if any of its elements is wrong."""
        return any(cell.wrong for cell in self.cells)

    @property
    def indices(self) -> tuple[str, ...]:
        """Last index of each element."""
        return tuple(str(cell.at[-1]) if cell.at else "" for cell in self.cells)


class DifferenceView(NamedTuple):
    """One wrong field: the lines around the first difference, and the counts of the rest."""

    field: str
    expected_type: str
    got_type: str
    lines: tuple[Line, ...]
    above: str
    below: str
    scalar: bool
    """True if the field is one value without indices."""
    total: int
    wrong: int
    first: Cell | None

    @property
    def sentence(self) -> str:
        """The difference in words."""
        parts = []
        if self.expected_type != self.got_type:
            parts.append(f"type {self.got_type} where {self.expected_type} is right")
        if self.first is not None:
            place = "" if self.scalar else f" at {index_text(self.first.at)}"
            parts.append(
                f"first difference{place}: expected {shown(self.first.expected)}, "
                f"got {shown(self.first.got)}"
            )
            if not self.scalar:
                parts.append(f"{self.wrong:,} of {many(self.total, 'element')} wrong")
        return "; ".join(parts) or "no element differs"


def view_difference(difference: Difference, width: int, separator: int = 2) -> DifferenceView:
    """Choose the lines of `difference` to draw in `width` columns of text."""
    rows = list(_paired(difference))
    cells = [cell for row in rows for cell in row]
    lines = _lines(rows, width, separator)
    first_line = next((i for i, line in enumerate(lines) if line.wrong), 0)
    first = max(0, first_line - _BEFORE)
    last = min(len(lines), first + MAX_LINES)
    while last > first_line + 2 and not (lines[last - 1].wrong or lines[last - 2].wrong):
        last -= 1
    return DifferenceView(
        field=escape_line(difference.field),
        expected_type=escape_line(difference.expected_type),
        got_type=escape_line(difference.got_type),
        lines=tuple(lines[first:last]),
        above=_left_out(lines[:first], "before"),
        below=_left_out(lines[last:], "after"),
        scalar=all(not cell.at for cell in cells),
        total=len(cells),
        wrong=sum(cell.wrong for cell in cells),
        first=next((cell for cell in cells if cell.wrong), None),
    )


def changed_lines(before: Any, after: Any, width: int, separator: int = 2) -> list[Line]:
    """Return the changed lines of a field: old values as `expected`, new ones as `got`.

    A changed cell is marked `wrong`, and has one unchanged neighbour on each side. Two values
    that differ in no element, such as in the number of empty rows, are one cell.
    """
    depth = _depth(after)
    rows: list[list[Cell]] = []
    if depth >= _depth(before):
        # Every element is new if the old value has less depth, such as None.
        earlier = before if depth == _depth(before) else []
        rows = list(_aligned(earlier, after, depth, None))
    lines = [_trimmed(line) for line in _lines(rows, width, separator) if line.wrong]
    return lines or [Line("", (Cell((), _text(before), _text(after), True),))]


def first_wrong(difference: Difference) -> Index | None:
    """Return the index of the first wrong element, None if there is none."""
    return next((c.at for row in _paired(difference) for c in row if c.wrong), None)


def index_text(index: Index) -> str:
    """Return the index as text, such as "[3, 17]"."""
    return f"[{', '.join(map(str, index))}]"


def shown(text: str | None) -> str:
    """Return one side of a cell as text."""
    return "no element" if text is None else text


def _paired(difference: Difference) -> Iterator[list[Cell]]:
    """Yield rows of cells; a cell has the elements of both sides with the same index."""
    expected, got = difference.expected, difference.got
    depth = _depth(expected)
    if depth != _depth(got):
        # Elements of a number and of a table have no common indices.
        yield [Cell((), _text(expected), _text(got), True)]
        return
    marked = None if difference.wrong is None else {tuple(index) for index in difference.wrong}
    yield from _aligned(expected, got, depth, marked)


def _aligned(
    expected: Any, got: Any, depth: int, marked: set[Index] | None
) -> Iterator[list[Cell]]:
    """Yield rows of two values of one depth.

    A cell is wrong if it is `marked`; without `marked`, if the values differ.
    """
    left, right = dict(_rows(expected, ())), dict(_rows(got, ()))
    for prefix in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(prefix, []), right.get(prefix, [])
        row = []
        for i in range(max(len(ours), len(theirs))):
            index = (*prefix, i) if depth else ()
            a, b = ours[i : i + 1], theirs[i : i + 1]
            both = bool(a) and bool(b)
            wrong = not both or (not same(a[0], b[0]) if marked is None else index in marked)
            texts = _text(a[0]) if a else None, _text(b[0]) if b else None
            if both and isinstance(a[0], float) and isinstance(b[0], float):
                texts = float_texts(a[0], b[0])
            row.append(Cell(index, *texts, wrong))
        if row:
            yield row


def _lines(rows: list[list[Cell]], width: int, separator: int) -> list[Line]:
    """Cut rows into lines of at most `width` columns of text."""
    texts = (text for row in rows for cell in row for text in cell[1:3] if text)
    per_line = _per_line(width, max(map(len, texts), default=1) + separator)
    return [
        Line("".join(f"[{i}]" for i in row[0].at[:-1]), tuple(row[start : start + per_line]))
        for row in rows
        for start in range(0, len(row), per_line)
    ]


def _trimmed(line: Line) -> Line:
    """Return the line from one cell before its first wrong cell to one after its last."""
    wrong = [i for i, cell in enumerate(line.cells) if cell.wrong]
    return line._replace(cells=line.cells[max(0, wrong[0] - 1) : wrong[-1] + 2])


def same(a: Any, b: Any) -> bool:
    """True if type and value are equal: True is not 1, 1 is not 1.0, nan is nan."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return type(a) is type(b) and bool(a == b)


def _rows(value: Any, prefix: Index) -> Iterator[tuple[Index, list[Any]]]:
    """Yield the innermost lists of nested lists, each with its index."""
    if not isinstance(value, list | tuple):
        yield prefix, [value]
    elif any(isinstance(item, list | tuple) for item in value):
        for i, item in enumerate(value):
            yield from _rows(item, (*prefix, i))
    else:
        yield prefix, list(value)


def _depth(value: Any) -> int:
    """Return the depth of nested lists, 0 for a scalar."""
    if not isinstance(value, list | tuple):
        return 0
    return 1 + max((_depth(item) for item in value), default=0)


def _text(value: Any) -> str:
    """Return a value in few characters; integers are never shortened."""
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    text = escape_line(repr(value))
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def _per_line(width: int, cell: int) -> int:
    """Return the cells in a line: a round number, so that indices are easy to count."""
    fits = max(2, width // cell)
    return next((round_ for round_ in (32, 24, 20, 16, 12, 10, 8) if round_ <= fits), fits)


def _left_out(lines: list[Line], where: str) -> str:
    cells = [cell for line in lines for cell in line.cells]
    if not cells:
        return ""
    wrong = sum(cell.wrong for cell in cells)
    verdict = f"{wrong:,} of them wrong" if wrong else "all equal"
    return f"{many(len(cells), 'element')} {where}, {verdict}"
