"""A sequence for a terminal: steps, changed fields, and the first difference."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from attnproof.harness.escaping import escape_line, escape_lines
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.changes import change_text
from attnproof.harness.report.pictures.sequence_view import StepView, view_sequence
from attnproof.harness.report.shared.wording import listed, many, shorten
from attnproof.harness.report.terminal.case import difference_lines

_CHANGE = 120
"""Maximum number of characters for the change of one field."""
_NAMES = 8


def draw_steps(
    steps: Sequence[tuple[str, str]],
    outputs: Sequence[Difference],
    place: Place | None = None,
    *,
    passed: bool = False,
) -> RenderableType:
    """Draw every step (label, source) with the changed state below it; `>` marks the failing one.

    `place` is the first wrong output. No step is marked if the candidate `passed`.
    """
    view = view_sequence(steps, outputs, place)
    digits = len(str(len(steps)))
    parts: list[RenderableType] = [Text(many(len(steps), "step"), style="bold")]
    if view.above:
        parts.append(Text(f"  ... {view.above}", style="dim"))
    for step in view.steps:
        parts += _step(step, digits, failing=step.failing and not passed)
    if view.below:
        parts.append(Text(f"  ... {view.below}", style="dim"))
    legend = ["name was -> is   [2] an element"] if any(step.changes for step in view.steps) else []
    if any(step.failing for step in view.steps) and not passed:
        legend.append("> goes wrong")
    return Group(*parts, *([Text(f"  {'   '.join(legend)}", style="dim")] if legend else []))


def _step(step: StepView, digits: int, *, failing: bool) -> list[RenderableType]:
    head = Text("> " if failing else "  ", style="bold red")
    head.append(f"{step.number:{digits}}  ", style="bold" if failing else "not bold dim")
    head.append(escape_line(step.label), style="bold" if step.reached else "not bold dim")
    for words in (*step.remarks, *([] if step.reached else ["not compared"])):
        head.append(f"  ({escape_line(words)})", style="not bold dim")
    pad = " " * (digits + 4)
    lines: list[RenderableType] = [head]
    lines += [Text(f"{pad}{line}", style="cyan") for line in escape_lines(step.code).split("\n")]
    lines += [
        Text.assemble(
            f"{pad}  ",
            (escape_line(change.name), "bold"),
            f"  {shorten(escape_line(change_text(change)), _CHANGE)}",
        )
        for change in step.changes
    ]
    if step.more:
        lines.append(Text(f"{pad}  also changed: {listed(_escaped(step.more), _NAMES)}", "dim"))
    lines += [Text.assemble(f"{pad}  ", line) for line in difference_lines(step.wrong)]
    if step.more_wrong:
        lines.append(Text(f"{pad}  also wrong: {listed(_escaped(step.more_wrong), _NAMES)}"))
    if step.wrong and step.equal:
        lines.append(Text(f"{pad}  equal: {listed(_escaped(step.equal), _NAMES)}", style="dim"))
    return lines


def _escaped(names: tuple[str, ...]) -> list[str]:
    return [escape_line(name) for name in names]
