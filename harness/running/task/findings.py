"""What a task hands back of what is wrong: root causes, and known deviations beside them."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from attnproof.harness.model.case import Sourced
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.run import DeviationResult, Difference, Finding
from attnproof.harness.model.verdict import ORACLES, Failure
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.task.examination import Examination

_NO_FIELDS = ("process", "errors")
"""Oracles whose failures, told apart by their kind, need not be about a field."""


def findings_of(examination: Examination) -> list[Finding]:
    """One finding a smallest case: the oracle that judges first speaks for the others."""
    order: dict[str, Any] = {name: index for index, name in enumerate(ORACLES)}
    kept: dict[str, Finding] = {}
    for found in examination.found.values():
        count = examination.failed_by_root.get(found.failure.root, 0)
        name = f"{found.failure.oracle}/{found.failure.field}"
        finding = _finding(examination, name, found.failure, found.smallest, found.first, count)
        other = kept.get(finding.case_id)
        if other is None or order[finding.oracle] < order[other.oracle]:
            kept[finding.case_id] = finding
    return list(kept.values())


def deviation_results(examination: Examination, *, with_stale: bool) -> list[DeviationResult]:
    """The known deviations that showed; with those that should have and did not, if asked for."""
    return [
        _deviation(examination, deviation)
        for deviation in examination.deviations
        if examination.operation.name in deviation.operations
        and (with_stale or deviation.id in examination.occurred)
    ]


def _deviation(examination: Examination, deviation: Deviation) -> DeviationResult:
    result = DeviationResult(
        id=deviation.id,
        title=deviation.title,
        reference=deviation.reference,
        since=deviation.since,
        operation=examination.operation.name,
        candidate=examination.candidate.name,
        version=version_of(examination.candidate),
        cases=0,
    )
    there = examination.occurred.get(deviation.id)
    if there is None:
        return result
    result.cases = there.cases
    result.oracles = tuple(sorted(there.oracles, key=list(ORACLES).index))
    result.fields = tuple(sorted(there.fields))
    result.shown = _finding(
        examination, deviation.id, there.failure, there.smallest, there.first, there.cases
    )
    return result


def _finding(
    examination: Examination,
    name: str,
    failure: Failure,
    smallest: Sourced,
    first: Sourced,
    cases: int,
) -> Finding:
    case, candidate = smallest.case, examination.candidate
    explanation = examination.worker.explain(case)
    identity = f"{case.operation}/{candidate.name}/{name}"
    return Finding(
        id=hashlib.blake2b(identity.encode(), digest_size=4).hexdigest(),
        operation=case.operation,
        candidate=candidate.name,
        device=candidate.lane,
        oracle=failure.oracle,
        field=failure.where or ("" if failure.oracle in _NO_FIELDS else failure.field),
        place=failure.place,
        diagnosis=failure.diagnosis,
        message=failure.message,
        expected=failure.expected,
        got=failure.got,
        case=case,
        case_id=case.id,
        case_path=f"cases/{case.id}.json",
        origin=smallest.origin,
        source=smallest.source,
        requests=case.num_requests,
        tokens=case.num_tokens,
        requests_before=first.case.num_requests,
        tokens_before=first.case.num_tokens,
        steps=explanation.steps,
        steps_before=first.case.num_steps,
        snippet=explanation.snippet,
        failed_cases=cases,
        command="",
        outputs=[msgspec.convert(output, Difference) for output in explanation.outputs],
        log=failure.log or explanation.log,
    )
