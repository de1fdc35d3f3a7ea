"""gl-code-quality-report.json: the findings as GitLab shows them in a merge request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from attnproof.harness.escaping import escape_line, escape_tree
from attnproof.harness.model.run import Finding, Run
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.shared.comparison import is_new
from attnproof.harness.report.shared.identity import fingerprints, rule_id
from attnproof.harness.report.shared.inline import inline_replay
from attnproof.harness.report.shared.source import source_place, source_root
from attnproof.harness.report.shared.wording import shorten

_TEXT = 1_000
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
    found = [(finding, True) for finding in run.findings]
    found += [(advice, False) for advice in run.advice]
    marks = fingerprints(finding for finding, _ in found)
    entries = [
        _entry(run, finding, mark, root, fails=fails)
        for (finding, fails), mark in zip(found, marks, strict=True)
    ]
    return msgspec.json.format(msgspec.json.encode(escape_tree(entries)), indent=2) + b"\n"


def _entry(run: Run, finding: Finding, mark: str, root: Path, *, fails: bool) -> dict[str, Any]:
    place = source_place(finding.function, root)
    new = "New since base: " if is_new(finding, run.base) else ""
    about = f"{finding.operation} of {finding.candidate}: {shorten(finding.diagnosis, _TEXT)}"
    if finding.has_known_mistake:
        about += f": {shorten(finding.message, _TEXT)}"
    replay = inline_replay(finding) or finding.command
    return {
        "description": escape_line(f"{new}{about}. Replay: {replay}"),
        "check_name": f"attnproof/{rule_id(finding)}",
        "fingerprint": mark,
        "severity": _SEVERITIES[finding.kind] if fails else _ADVICE,
        "location": {
            "path": place.path if place else finding.candidate,
            "lines": {"begin": max(place.line, 1) if place else 1},
        },
    }
