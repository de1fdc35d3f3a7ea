"""gl-code-quality-report.json: the findings as GitLab shows them in a merge request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnproof.harness.escaping import escape_line, escape_tree
from attnproof.harness.model.run import Run
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.shared.files import indented_json
from attnproof.harness.report.shared.finding_text import FindingText
from attnproof.harness.report.shared.identity import fingerprints, rule_id
from attnproof.harness.report.shared.source import source_place, source_root

_SEVERITIES = {
    Kind.WRONG_RESULT: "critical",
    Kind.UNSAFE: "blocker",
    Kind.CONTRACT: "minor",
    Kind.TYPE: "minor",
}
_ADVICE = "info"
"""Severity of findings that fail no candidate."""


def code_quality_bytes(run: Run, root: Path | None = None) -> bytes:
    """Return a JSON list with an entry for each finding and each advice, in their order.

    Paths are relative to `root`, by default that of the checkout. A finding without a known place
    has its candidate's name as path.
    """
    root = root or source_root()
    findings = [*run.findings, *run.advice]
    entries = [
        _entry(FindingText(finding, run.base), mark, root, fails=number < len(run.findings))
        for number, (finding, mark) in enumerate(zip(findings, fingerprints(findings), strict=True))
    ]
    return indented_json(escape_tree(entries))


def _entry(text: FindingText, mark: str, root: Path, *, fails: bool) -> dict[str, Any]:
    finding = text.finding
    place = source_place(finding.function, root)
    about = f"{text.if_new('New since base: ')}{text.subject()}: {text.mistake()}"
    return {
        "description": escape_line(f"{about}. Replay: {text.replay()}"),
        "check_name": f"attnproof/{rule_id(finding)}",
        "fingerprint": mark,
        "severity": _SEVERITIES[finding.kind] if fails else _ADVICE,
        "location": {
            "path": place.path if place else finding.candidate,
            "lines": {"begin": place.line if place else 1},
        },
    }
