"""The findings of an examination, and the results of its known deviations."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from attnproof.harness.guard import attempt
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.run import DeviationResult, Difference, Finding
from attnproof.harness.model.verdict import ERRORS, ORACLES, PROCESS, Explanation, Failure
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.task.examination import Examination

_WITHOUT_FIELD = (PROCESS, ERRORS)
"""Oracles whose failures have a kind in place of an output field."""


def findings_of(examination: Examination) -> list[Finding]:
    """Return one finding for each smallest case, from the first oracle that it fails."""
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
    """Return the known deviations that occurred; `with_stale` adds those that did not."""
    return [
        _deviation(examination, deviation)
        for deviation in examination.deviations
        if examination.operation.name in deviation.operations
        and (with_stale or deviation.id in examination.occurred)
    ]


def _deviation(examination: Examination, deviation: Deviation) -> DeviationResult:
    stale = DeviationResult(
        id=deviation.id,
        title=deviation.title,
        reference=deviation.reference,
        since=deviation.since,
        operation=examination.operation.name,
        candidate=examination.candidate.name,
        version=version_of(examination.candidate),
        cases=0,
    )
    found = examination.occurred.get(deviation.id)
    if found is None:
        return stale
    return msgspec.structs.replace(
        stale,
        cases=found.cases,
        oracles=tuple(sorted(found.oracles, key=list(ORACLES).index)),
        fields=tuple(sorted(found.fields)),
        shown=_finding(
            examination, deviation.id, found.failure, found.smallest, found.first, found.cases
        ),
    )


def _finding(
    examination: Examination,
    name: str,
    failure: Failure,
    smallest: Sourced,
    first: Sourced,
    cases: int,
) -> Finding:
    case, candidate = smallest.case, examination.candidate
    explanation, outputs = attempt(
        "the expected values",
        lambda: _explained(examination, case),
        lambda fault: (Explanation([], fault), []),
    )
    identity = f"{case.operation}/{candidate.name}/{name}"
    return Finding(
        id=hashlib.blake2b(identity.encode(), digest_size=4).hexdigest(),
        operation=case.operation,
        candidate=candidate.name,
        device=candidate.lane,
        oracle=failure.oracle,
        field=failure.where or ("" if failure.oracle in _WITHOUT_FIELD else failure.field),
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
        function=examination.worker.places.get(case.operation, ""),
        command="",
        outputs=outputs,
        log=failure.log or explanation.log,
    )


def _explained(examination: Examination, case: Case) -> tuple[Explanation, list[Difference]]:
    explanation = examination.worker.explain(case)
    return explanation, [msgspec.convert(output, Difference) for output in explanation.outputs]
