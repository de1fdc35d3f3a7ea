"""A finding in plain text: the mistake, a picture of the case, the outputs, how to replay it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import RenderableType

from attnproof.harness.escaping import escape_line, escape_lines
from attnproof.harness.guard import attempt
from attnproof.harness.model.case import Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import Difference, Finding
from attnproof.harness.report.pictures.sequence_input import case_steps
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.terminal.case import draw_case, draw_difference
from attnproof.harness.report.terminal.sequence import draw_steps
from attnproof.harness.verbs.screen import Screen

_WIDTH = 110
"""Characters of the longest line of a picture."""


def finding_card(finding: Finding, replay: str) -> str:
    """Return the text of a finding; `replay` is the command line that repeats it."""
    head = f"{finding.operation} [{finding.candidate}] ({finding.kind}): {finding.diagnosis}"
    effect = attempt("the consequence", lambda: consequence(finding), str)
    lines = [head, f"  {finding.message}", *([f"  {effect}"] if effect else [])]
    drawing = picture(finding.case, finding.outputs, finding.place, finding.steps)
    end = [f"at {finding.function}"] if finding.function else []
    end += [f"replay: {replay}"] if replay else []
    logs = [finding.log.rstrip()] if finding.log else []
    return escape_lines("\n".join([*map(escape_line, lines), "", drawing, *logs, *end]))


def picture(
    case: Case,
    differences: Sequence[Difference],
    place: Place | None = None,
    steps: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a picture of the case and of the outputs that differ, in plain ASCII."""
    wrong = [difference for difference in differences if not difference.equal]
    texts = [attempt("the picture of the case", lambda: _plain(draw_case(case, wrong)), str)]
    shown = list(steps) or attempt("the steps", lambda: case_steps(case), lambda _fault: [])
    if shown:
        drawn = attempt(
            "the picture of the steps",
            lambda: _plain(draw_steps(shown, list(differences), place, passed=False)),
            str,
        )
        texts.append(drawn)
    elif wrong:
        texts.append(
            attempt("the picture of the outputs", lambda: _plain(draw_difference(wrong)), str)
        )
    return "\n".join(texts)


def _plain(drawing: RenderableType) -> str:
    """Return the drawing as text without colours."""
    console = Screen(soft_wrap=True)
    console.file, console.width, console.no_color = io.StringIO(), _WIDTH, True
    console.print(drawing)
    return console.file.getvalue().rstrip()
