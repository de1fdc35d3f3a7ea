"""Annotations, step summary and outputs of a run, in the formats of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.run import Finding, Run
from attnproof.harness.report.shared.comparison import is_new
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.inline import inline_replay
from attnproof.harness.report.shared.source import source_place, source_root
from attnproof.harness.report.shared.wording import many, shorten

_MOST = 10
"""Annotations of each kind that GitHub shows for a step."""
_TEXT = 1_000
_TITLE = 200


def workflow_commands(run: Run, root: Path | None = None) -> list[str]:
    """Return the workflow commands that annotate the candidates' functions.

    These are an error for each finding, in the order of the run, and a warning for each advice,
    at most ten of each; then a notice with the number of those left out. Paths are relative to
    `root`, by default that of the checkout; a function outside has none. A run that fails without
    a finding or is incomplete has an error with its reason.
    """
    root = root or source_root()
    lines = [_annotation("error", run, finding, root) for finding in run.findings[:_MOST]]
    lines += [_annotation("warning", run, advice, root) for advice in run.advice[:_MOST]]
    if run.verdict != "PASS" and (run.reason or not run.findings):
        lines.append(_command("error", {"title": f"attnproof {run.verdict}"}, run.reason))
    left = max(len(run.findings) - _MOST, 0), max(len(run.advice) - _MOST, 0)
    if any(left):
        text = f"{many(left[0], 'more finding')} and {left[1]:,} more advice: see the step summary"
        lines.append(_command("notice", {"title": "attnproof"}, text))
    return lines


def step_outputs(run: Run, place: Path) -> str:
    """Return the outputs of the step: verdict, numbers of findings, folder of the report."""
    new = len(run.base.new) if run.base else len(run.findings)
    fields = {
        "verdict": run.verdict,
        "findings": len(run.findings),
        "new": new,
        "report": escape_line(place),
    }
    return "".join(f"{name}={value}\n" for name, value in fields.items())


def _annotation(level: str, run: Run, finding: Finding, root: Path) -> str:
    place = source_place(finding.function, root)
    new = "new: " if is_new(finding, run.base) else ""
    title = f"{new}{finding.operation} of {finding.candidate}: {finding.diagnosis}"
    properties = {"title": shorten(title, _TITLE)}
    if place is not None and place.is_inside:
        properties = {"file": place.path, "line": str(max(place.line, 1))} | properties
    return _command(level, properties, "\n".join(_lines(finding)))


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{shorten(finding.message, _TEXT)} ({finding.kind}, {finding.device})"
    if effect := consequence(finding):
        yield effect
    yield inline_replay(finding) or finding.command


def _command(level: str, properties: dict[str, str], text: str) -> str:
    """Return a workflow command; nothing in the text can start another one."""
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    message = "\n".join(escape_line(line) for line in text.split("\n"))
    return f"::{level} {given}::{_escaped(message)}"


def _property(value: str) -> str:
    return _escaped(escape_line(value)).replace(":", "%3A").replace(",", "%2C")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
