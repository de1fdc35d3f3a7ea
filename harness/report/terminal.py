"""The same pictures for a terminal: they read without colour and in plain ASCII."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from harness.model.case import Batch
from harness.model.run import Difference

from .batch_view import BatchView, RequestRow, find_focus, view_batch
from .difference_view import DifferenceView, Line, view_difference
from .wording import clean, listed, many

_SIGNS = {"computed": "o", "query": "#", "unused": "."}
_STYLES = {"computed": "cyan", "query": "bold blue", "unused": "dim"}


def draw_batch(batch: Batch, differences: Sequence[Difference] = ()) -> RenderableType:
    """The batch, a line a request; the row of the first of `differences` is marked with >."""
    view = view_batch(batch, find_focus(batch, differences))
    lines = [Text(view.facts, style="bold")]
    if view.above:
        lines.append(Text(f"  ... {view.above}", style="dim"))
    lines += [_request(row, view) for row in view.rows]
    if view.below:
        lines.append(Text(f"  ... {view.below}", style="dim"))
    lines += [Text(f"  {line}", style="dim") for line in _padding(view)]
    legend = "  o computed   # query   . unused   17[..] block 17"
    return Group(*lines, Text(legend, style="dim"))


def draw_difference(differences: Iterable[Difference], width: int = 96) -> RenderableType:
    """Every wrong field, expected above got, ^ under what is wrong; equal ones by name."""
    differences = list(differences)
    parts: list[Text] = []
    for difference in differences:
        if not difference.equal:
            parts += _field(view_difference(difference, width - 12))
    equal = [clean(difference.field) for difference in differences if difference.equal]
    if equal:
        parts.append(Text(f"equal: {listed(equal)}", style="dim"))
    return Group(*parts)


def _request(row: RequestRow, view: BatchView) -> Text:
    """`> r3  q 2 c 5 s 7   17[oooo] 3[o##.]  2 stale`."""
    digits = len(str(max(r.number for r in view.rows)))
    size = f"q {row.query} c {row.computed} s {row.length}"
    widest = max(len(f"q {r.query} c {r.computed} s {r.length}") for r in view.rows)
    line = Text("> " if row.focused else "  ", style="bold red")
    line.append(f"r{row.number:<{digits}}  ", style="bold")
    line.append(f"{size:<{widest}}  ", style="dim")
    last = 0
    for piece in row.pieces:
        if piece.start > last:
            line.append(f" ..{piece.start - last:,}.. ", style="dim")
        _blocks(line, row, piece)
        last = piece.stop
    if last < row.capacity:
        line.append(f" ..{row.capacity - last:,}.. ", style="dim")
    if not row.length:
        line.append("no tokens ", style="dim")
    elif not row.query:
        line.append("no query ", style="dim")
    if row.stale_columns:
        line.append(f" {many(row.stale_columns, 'stale column')}", style="yellow")
    if row.note:
        line.append(f"  {row.note}", style="dim")
    return line


def _blocks(line: Text, row: RequestRow, piece: range) -> None:
    """Append the positions of `piece`, block by block."""
    block = -1
    for position in piece:
        if position // row.block_size != block:
            line.append("] " if block >= 0 else "", style="dim")
            block = position // row.block_size
            name = row.blocks[block] if block < len(row.blocks) else "none"
            line.append(f"{name}[", style="dim")
        kind = row.kind(position)
        focused = position == row.focus_position
        line.append(_SIGNS[kind], style="bold reverse red" if focused else _STYLES[kind])
    line.append("] ", style="dim")


def _padding(view: BatchView) -> list[str]:
    lines = []
    if view.padded_rows:
        columns = many(view.columns, "stale column")
        lines.append(f"{many(view.padded_rows, 'padded row')}: q 0 s 0, {columns} each")
    if view.padded_tokens:
        lines.append(f"{many(view.padded_tokens, 'padding token')} with slot -1")
    if view.spare_slots:
        lines.append(f"{many(view.spare_slots, 'stale slot')} behind the tokens")
    return lines


def _field(view: DifferenceView) -> list[Text]:
    types = view.expected_type
    if view.got_type != view.expected_type:
        types = f"expected {view.expected_type}, got {view.got_type}"
    parts = [Text.assemble((view.field, "bold"), f"  {types}"), Text(f"  {view.sentence}")]
    if view.above:
        parts.append(Text(f"  ... {view.above}", style="dim"))
    for line in view.lines:
        parts += _line(line, view)
    if view.below:
        parts.append(Text(f"  ... {view.below}", style="dim"))
    return parts


def _line(line: Line, view: DifferenceView) -> list[Text]:
    """Indices, expected, got and marks, one under the other."""
    label = max(len(item.label) for item in view.lines)
    sides = [
        (str(cell.at[-1]) if cell.at else "", cell.expected or "-", cell.got or "-", cell)
        for cell in line.cells
    ]
    width = max(len(text) for side in sides for text in side[:3])
    index = Text(f"  {'':{label}} {'':8}", style="dim")
    expected = Text(f"  {line.label:{label}} {'expected':8}")
    got = Text(f"  {'':{label}} {'got':8}")
    marks = Text(f"  {'':{label}} {'':8}", style="bold red")
    for position, right, wrong, cell in sides:
        index.append(f"  {position:>{width}}")
        expected.append(f"  {right:>{width}}", style="green" if cell.wrong else "")
        got.append(f"  {wrong:>{width}}", style="bold red" if cell.wrong else "")
        marks.append(f"  {'^' * len(wrong) if cell.wrong else '':>{width}}")
    lines = [expected, got] if view.scalar else [index, expected, got]
    if line.wrong:
        if any(cell is view.first for cell in line.cells) and view.wrong > 1:
            marks.append("  first difference")
        marks.rstrip()
        lines.append(marks)
    return lines
