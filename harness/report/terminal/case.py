"""Pictures of cases and differences for a terminal: readable without colour, plain ASCII."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.batch_view import BatchView, RequestRow, view_batch
from attnproof.harness.report.pictures.difference_view import DifferenceView, Line, view_difference
from attnproof.harness.report.pictures.focus import NO_MARKS, Focus, Marks, find_focus, find_marks
from attnproof.harness.report.shared.parameters import meanings
from attnproof.harness.report.shared.wording import listed, many, shorten

_SIGNS = {"computed": "o", "query": "#", "unused": "."}
_STYLES = {"computed": "cyan", "query": "bold blue", "unused": "dim"}


def draw_case(case: Case, differences: Sequence[Difference] = ()) -> RenderableType:
    """Draw a case's batch and other arguments, and mark the first of `differences`.

    `attnproof.harness.report.terminal.sequence` draws the steps of a sequence.
    """
    parts: list[RenderableType] = []
    if case.batch is not None:
        parts.append(
            draw_batch(case.batch, focus=find_focus(case, differences), marks=find_marks(case))
        )
    texts = meanings(case)
    parts += [
        Text.assemble(
            (f"{name} ", "dim"),
            shorten(escape_line(repr(value)), 200),
            (f"  ({escape_line(texts[name])})" if name in texts else "", "dim"),
        )
        for name, value in case.params.items()
        if not (case.num_steps and name == "steps")
    ]
    if case.fault:
        parts.append(Text.assemble(("fault ", "dim"), escape_line(case.fault)))
    return Group(*parts)


def draw_batch(
    batch: Batch, *, focus: Focus | None = None, marks: Marks = NO_MARKS
) -> RenderableType:
    """Draw the batch, one line per request: blocks with ids, computed and query tokens."""
    view = view_batch(batch, focus, marks)
    lines = [Text(view.facts, style="bold")]
    if view.above:
        lines.append(Text(f"  ... {view.above}", style="dim"))
    lines += [_request(row, view) for row in view.rows]
    if view.below:
        lines.append(Text(f"  ... {view.below}", style="dim"))
    lines += [Text(f"  {line}", style="dim") for line in _padding(view)]
    legend = "  o computed   # query   . unused   17[..] block 17"
    legend += f"   | {view.mark}" if view.mark else ""
    legend += "   > first difference" if any(row.focused for row in view.rows) else ""
    return Group(*lines, Text(legend, style="dim"))


def draw_difference(differences: Iterable[Difference], width: int = 96) -> RenderableType:
    """Draw every wrong field as `difference_lines` does, and name the equal ones."""
    differences = list(differences)
    parts = difference_lines(differences, width)
    equal = [escape_line(difference.field) for difference in differences if difference.equal]
    if equal:
        parts.append(Text(f"equal: {listed(equal)}", style="dim"))
    return Group(*parts)


def difference_lines(differences: Iterable[Difference], width: int = 96) -> list[Text]:
    """Draw every wrong field: expected above got, and ^ under wrong elements."""
    parts: list[Text] = []
    for difference in differences:
        if not difference.equal:
            parts += _field(view_difference(difference, width - 16))
    return parts


def _request(row: RequestRow, view: BatchView) -> Text:
    """Draw a request as `> r3  q 2 c 5 s 7   17[oooo] 3[o##.]  2 stale columns`."""
    digits = len(str(max(r.number for r in view.rows)))
    size = f"q {row.query} c {row.computed} s {row.length}"
    widest = max(len(f"q {r.query} c {r.computed} s {r.length}") for r in view.rows)
    line = Text("> " if row.focused else "  ", style="bold red")
    line.append(f"r{row.number:<{digits}}  ", style="bold")
    line.append(f"{size:<{widest}}  ", style="not bold dim")
    last = 0
    for piece in row.pieces:
        if piece.start > last:
            line.append(f" ..{piece.start - last:,}.. ", style="dim")
        _blocks(line, row, piece)
        last = piece.stop
    if last < row.capacity:
        line.append(f" ..{row.capacity - last:,}.. ", style="dim")
    notes = ["no tokens"] if not row.length else ["no query"] if not row.query else []
    if row.stale_columns:
        notes.append(many(row.stale_columns, "stale column"))
    line.append(f" {', '.join([*notes, row.note] if row.note else notes)}", style="yellow")
    line.rstrip()
    return line


def _blocks(line: Text, row: RequestRow, piece: range) -> None:
    """Append the positions of `piece` to the line, block by block."""
    block = -1
    for position in piece:
        if position // row.block_size != block:
            line.append("] " if block >= 0 else "", style="dim")
            block = position // row.block_size
            name = row.blocks[block] if block < len(row.blocks) else "none"
            line.append(f"{name}[", style="dim")
        if position in row.marks:
            line.append("|", style="bold magenta")
        focused = position == row.focus_position
        kind = row.kind(position)
        line.append(_SIGNS[kind], style="bold reverse red" if focused else _STYLES[kind])
    line.append("] ", style="dim")


def _padding(view: BatchView) -> list[str]:
    lines = []
    if view.padded_rows:
        columns = many(view.columns, "stale column")
        each = " each" if view.padded_rows > 1 else ""
        lines.append(f"{many(view.padded_rows, 'padded row')}: q 0 s 0, {columns}{each}")
    if view.padded_tokens:
        lines.append(f"{many(view.padded_tokens, 'padding token')} with slot -1")
    if view.spare_slots:
        lines.append(f"{many(view.spare_slots, 'stale slot')} after the tokens")
    return lines


def _field(view: DifferenceView) -> list[Text]:
    types = view.expected_type
    if view.got_type != view.expected_type:
        types = f"expected {view.expected_type}, got {view.got_type}"
    parts = [Text.assemble((view.field, "bold"), f"  {types}"), Text(f"  {view.sentence}")]
    if view.above:
        parts.append(Text(f"  ... {view.above}", style="dim"))
    header: tuple[str, ...] = ()
    for line in view.lines:
        parts += _line(line, view, header)
        header = line.indices
    if view.below:
        parts.append(Text(f"  ... {view.below}", style="dim"))
    return parts


def _line(line: Line, view: DifferenceView, header: tuple[str, ...]) -> list[Text]:
    """Draw indices (unless they equal `header`), expected, got and marks below each other."""
    label = max(len(item.label) for item in view.lines)
    width = max(
        len(text or "-")
        for item in view.lines
        for cell, index in zip(item.cells, item.indices, strict=True)
        for text in (index, cell.expected, cell.got)
    )

    def row(name: str, word: str, texts: Iterable[str | None], style: str) -> Text:
        out = Text(f"  {name:{label}} {word:8}")
        for cell, text in zip(line.cells, texts, strict=True):
            shown = "-" if text is None else text
            out.append(f"  {shown:>{width}}", style=style if cell.wrong or style == "dim" else "")
        out.rstrip()
        return out

    lines = []
    if not view.scalar and line.indices != header:
        lines.append(row("", "", line.indices, "dim"))
    expected = [cell.expected for cell in line.cells]
    if not line.wrong:
        return [*lines, row(line.label, "both", expected, "")]
    lines.append(row(line.label, "expected", expected, "green"))
    lines.append(row("", "got", [cell.got for cell in line.cells], "bold red"))
    marks = ["^" * len(cell.got or "-") if cell.wrong else "" for cell in line.cells]
    return [*lines, row("", "", marks, "bold red")]
