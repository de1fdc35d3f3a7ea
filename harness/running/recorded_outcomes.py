"""Outcome of comparing what an engine recorded, and the finding of a difference."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnproof.harness.escaping import escape_line, shell_command, shell_path
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Evidence, Finding, OperationResult, Verdict
from attnproof.harness.model.verdict import Kind
from attnproof.harness.running.task.task import Outcome


class Shown(NamedTuple):
    """A difference in words, and the case that shows it."""

    oracle: str
    root: str
    """Field that differs."""
    field: str
    """The same with the index of its first wrong element."""
    diagnosis: str
    message: str
    expected: str
    got: str
    case: Case
    source: str
    """Place in the recording."""


def recorded_outcome(
    path: Path,
    operation: Operation,
    shown: Sequence[Shown],
    compared: int,
    differing: int,
    refused: str,
) -> Outcome:
    """Return the result of one operation of one file, with a finding if it differs.

    `compared` and `differing` count results; `refused` says why others cannot be used.
    """
    candidate = f"{escape_line(path.name)} (recorded)"
    findings = [_finding(path, operation, candidate, each, compared, differing) for each in shown]
    verdict: Verdict = "FAIL" if findings else "UNVERIFIED" if refused else "PASS"
    return Outcome(
        OperationResult(
            name=operation.name,
            section=operation.section,
            candidate=candidate,
            device="cpu",
            verdict=verdict,
            reason=refused,
            cause=Cause.RECORDING if refused else None,
            cases=compared,
            checks=compared,
            failed=differing,
            origins={"recorded": compared},
            causes=tuple(finding.cause for finding in findings),
        ),
        findings,
    )


def _finding(
    path: Path, operation: Operation, candidate: str, shown: Shown, compared: int, differing: int
) -> Finding:
    words = ["attnproof", "verify", "--recorded", shell_path(path), "--ops", operation.name]
    case = shown.case
    return Finding(
        id=hashlib.blake2b(
            f"{operation.name}/{candidate}/{shown.root}".encode(), digest_size=4
        ).hexdigest(),
        operation=operation.name,
        candidate=candidate,
        device="cpu",
        oracle=shown.oracle,
        root=(Kind.WRONG_RESULT, shown.oracle, shown.root),
        kind=Kind.WRONG_RESULT,
        field=shown.field,
        fields=(shown.root,),
        diagnosis=shown.diagnosis,
        message=shown.message,
        expected=shown.expected,
        got=shown.got,
        case=case,
        case_id=case.id,
        case_path=f"cases/{case.id}.json",
        origin="recorded",
        source=shown.source,
        requests=case.num_requests,
        tokens=case.num_tokens,
        requests_before=case.num_requests,
        tokens_before=case.num_tokens,
        failed_cases=differing,
        evidence={"recorded": Evidence(differing, compared)},
        command=shell_command(words),
    )
