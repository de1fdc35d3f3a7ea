"""results.sarif: the findings in SARIF 2.1.0, for code hosts and editors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from attnproof.harness.escaping import escape_line, escape_tree
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Finding, Run
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.shared.files import indented_json
from attnproof.harness.report.shared.finding_text import LONGEST_TEXT, FindingText
from attnproof.harness.report.shared.identity import fingerprints, rule_id
from attnproof.harness.report.shared.source import source_place, source_root
from attnproof.harness.report.shared.wording import capital, shorten

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
"""Name for the root of the checkout, to which paths are relative."""
_FINGERPRINT = "attnproofIdentity/v1"


def sarif_bytes(run: Run, root: Path | None = None) -> bytes:
    """Return SARIF 2.1.0: a rule for each oracle and class, a result for each finding.

    Findings have the level error, advice has note. Paths are relative to `root`, by default that
    of the checkout. With a base run, `baselineState` is new or unchanged.
    """
    root = root or source_root()
    findings = [*run.findings, *run.advice]
    rules = {rule_id(finding): _rule(finding) for finding in findings}
    order = list(rules)
    results = [
        _result(run, finding, mark, order.index(rule_id(finding)), root)
        for finding, mark in zip(findings, fingerprints(findings), strict=True)
    ]
    driver = {
        "name": "attnproof",
        "semanticVersion": run.environment.attnproof,
        "rules": list(rules.values()),
    }
    invocation = {
        "commandLine": run.command,
        "startTimeUtc": run.started.replace("+00:00", "Z"),
        "executionSuccessful": run.verdict != "INCOMPLETE",
        "properties": {"verdict": run.verdict, "reason": run.reason, "seed": run.seed},
    }
    document = {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [invocation],
                "originalUriBaseIds": {_ROOT: {"description": {"text": "Root of the checkout"}}},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }
    return indented_json(escape_tree(document))


def _rule(finding: Finding) -> dict[str, Any]:
    title = f"{capital(finding.oracle)} fails: {finding.kind}"
    text = f"The oracle {finding.oracle} fails, with the class {finding.kind}."
    return {
        "id": rule_id(finding),
        "shortDescription": {"text": title},
        "fullDescription": {"text": text},
        "properties": {"tags": ["attnproof", finding.oracle]},
    }


def _result(run: Run, finding: Finding, mark: str, rule: int, root: Path) -> dict[str, Any]:
    text = FindingText(finding, run.base)
    result: dict[str, Any] = {
        "ruleId": rule_id(finding),
        "ruleIndex": rule,
        "level": "error" if finding in run.findings else "note",
        "message": {"text": _message(text)},
        "locations": _locations(finding, root),
        "partialFingerprints": {_FINGERPRINT: mark},
        "properties": {
            "operation": finding.operation,
            "candidate": finding.candidate,
            "device": finding.device,
            "class": Kind(finding.kind).value,
            "field": finding.field,
            "expected": shorten(finding.expected, LONGEST_TEXT),
            "got": shorten(finding.got, LONGEST_TEXT),
            "replay": finding.command,
            "caseId": finding.case_id,
            "case": msgspec.to_builtins(finding.case),
        },
    }
    if run.base is not None:
        result["baselineState"] = text.if_new("new") or "unchanged"
    return result


def _message(text: FindingText) -> str:
    """Return three lines: the mistake, its evidence, the command with the case in it."""
    about = f"{text.subject()} ({text.finding.device}, {text.finding.kind}): {text.mistake()}"
    shown = attempt("the evidence", text.evidence, escape_line)
    return f"{about}\nShown by {shown}.\nReplay: {text.replay()}"


def _locations(finding: Finding, root: Path) -> list[dict[str, Any]]:
    """Return the place of the candidate's function; none if it is unknown."""
    logical = [{"fullyQualifiedName": finding.operation, "kind": "function"}]
    place = source_place(finding.function, root)
    if place is None:
        return [{"logicalLocations": logical}]
    file: dict[str, Any] = {"uri": _uri(place.path)}
    if place.is_inside:
        file["uriBaseId"] = _ROOT
    physical = {"artifactLocation": file, "region": {"startLine": place.line}}
    return [{"physicalLocation": physical, "logicalLocations": logical}]


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path, errors="surrogateescape")
