"""The change of one field by a step of a sequence, for the page and the terminal."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from attnproof.harness.report.pictures.difference_view import Cell, Line, changed_lines, index_text
from attnproof.harness.report.shared.wording import many

_LINES = 2
_WIDTH = 72
"""Lines drawn of a changed field, and columns of text in a line."""
_BLANK = ("0", "None", "False")
"""Values that are left out of the first state."""


class Change(NamedTuple):
    """A field that a step changed."""

    name: str
    lines: tuple[Line, ...]
    """Cells with the old value as `expected`, the new one as `got`, and `wrong` if changed."""
    more: int
    """Number of changed elements that are not in the lines."""
    fresh: bool
    """True if the old value is unknown, as at the first step."""


def change_of(name: str, before: Any, after: Any, fresh: bool) -> Change:
    """Return the change of a field from `before` to `after`; `fresh` as in `Change`."""
    lines = changed_lines([] if fresh and isinstance(after, list) else before, after, _WIDTH)
    if fresh:
        lines = [line for line in lines if not all(cell.got in _BLANK for cell in line.cells)]
    more = sum(cell.wrong for line in lines[_LINES:] for cell in line.cells)
    return Change(name, tuple(lines[:_LINES]), more, fresh)


def is_blank(value: Any) -> bool:
    """True if all elements are zero, empty or None: the first state leaves these out."""
    return all(map(is_blank, value)) if isinstance(value, list | tuple) else not value


def change_text(change: Change) -> str:
    """Return the change in words: `None -> 3`, `[2] 0 -> 5, [3..4] new 7 8`."""
    parts = [
        _run_text(list(run), change.fresh)
        for line in change.lines
        for kind, run in groupby(line.cells, _kind)
        if kind != "same"
    ]
    if change.more:
        parts.append(f"{many(change.more, 'more element')} changed")
    return ", ".join(parts)


def _kind(cell: Cell) -> str:
    if not cell.wrong:
        return "same"
    return "gone" if cell.got is None else "new" if cell.expected is None else "changed"


def _run_text(cells: list[Cell], fresh: bool) -> str:
    """Return the change of neighbouring cells that changed in the same way."""
    place = _place(cells)
    was = " ".join(cell.expected or "" for cell in cells)
    now = " ".join(cell.got or "" for cell in cells)
    kind = _kind(cells[0])
    if kind == "gone":
        return f"{place}gone (was {was})"
    if fresh:
        return f"{place}{now}"
    return f"{place}new {now}" if kind == "new" else f"{place}{was} -> {now}"


def _place(cells: list[Cell]) -> str:
    first, last = cells[0].at, cells[-1].at
    if not first:
        return ""
    index = index_text(first)
    return f"{index} " if first == last else f"{index[:-1]}..{last[-1]}] "
