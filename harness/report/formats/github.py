"""Annotations, step summary and outputs of a run, in the formats of GitHub Actions."""

from __future__ import annotations

from pathlib import Path

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.run import Run
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.finding_text import FindingText
from attnproof.harness.report.shared.source import source_place, source_root
from attnproof.harness.report.shared.wording import many, shorten

_MOST = 10
"""Annotations of each kind that GitHub shows for a step."""
_TITLE = 200


def workflow_commands(run: Run, root: Path | None = None) -> list[str]:
    """Return the workflow commands that annotate the candidates' functions.

    These are an error for each finding, in the order of the run, and a warning for each advice,
    at most ten of each; then a notice with the number of those left out. Paths are relative to
    `root`, by default that of the checkout; a function outside has none. A run that fails without
    a finding or is incomplete has an error with its reason.
    """
    root = root or source_root()
    lines = [
        _annotation(level, FindingText(finding, run.base), root)
        for level, findings in (("error", run.findings), ("warning", run.advice))
        for finding in findings[:_MOST]
    ]
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


def _annotation(level: str, text: FindingText, root: Path) -> str:
    finding = text.finding
    place = source_place(finding.function, root)
    title = f"{text.if_new('new: ')}{text.subject()}: {finding.diagnosis}"
    properties = {"title": shorten(title, _TITLE)}
    if place is not None and place.is_inside:
        properties = {"file": place.path, "line": str(place.line)} | properties
    message = f"{text.message()} ({finding.kind}, {finding.device})"
    lines = filter(None, [message, consequence(finding), text.replay()])
    return _command(level, properties, "\n".join(lines))


def _command(level: str, properties: dict[str, str], text: str) -> str:
    """Return a workflow command; nothing in the text can start another one."""
    options = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    message = "\n".join(escape_line(line) for line in text.split("\n"))
    return f"::{level} {options}::{_escaped(message)}"


def _property(value: str) -> str:
    return _escaped(escape_line(value)).replace(":", "%3A").replace(",", "%2C")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
