"""The findings of an examination, and the results of its known deviations."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from attnproof.harness.guard import attempt
from attnproof.harness.model.case import Case
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.run import DeviationResult, Difference, Evidence, Finding
from attnproof.harness.model.verdict import (
    ERRORS,
    ORACLES,
    PROCESS,
    WITHOUT_REFERENCE,
    Explanation,
    Kind,
)
from attnproof.harness.oracles.diagnosis import heading
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.task.candidate_process import LATE
from attnproof.harness.running.task.earlier_calls import named_by_calls
from attnproof.harness.running.task.engine_deviations import engine_sentence
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.occurrences import Occurrence, Tally
from attnproof.harness.running.task.other_interfaces import interface_sentence
from attnproof.harness.running.task.root_causes import RootCause

_WITHOUT_FIELD = (PROCESS, ERRORS)
"""Oracles whose failures have a kind in place of an output field."""


@counted(Phase.REPORT)
def findings_of(examination: Examination, *, with_outputs: bool = True) -> list[Finding]:
    """Return one finding for each smallest case, from the first oracle that it fails.

    Two oracles that say the same of one field have found one mistake. Without outputs the
    candidate is not called.
    """
    order: dict[str, Any] = {name: index for index, name in enumerate(ORACLES)}
    kept: dict[str, Finding] = {}
    known = examination.roots.by_root
    for root, root_cause in known.items():
        if any(root_cause.failure.follows_from(other) for other in known if other != root):
            continue  # of a batch that no engine makes, and found on one that an engine makes too
        tally = examination.counts.tally_by_root.get(root, Tally())
        count = examination.counts.failed_by_root.get(root, 0)
        finding = _finding(examination, root_cause, tally, count, with_outputs=with_outputs)
        other = kept.get(finding.case_id)
        if other is None or order[finding.oracle] < order[other.oracle]:
            kept[finding.case_id] = finding
    if not with_outputs:
        return list(kept.values())
    said: dict[tuple[str, ...], Finding] = {}
    for finding in sorted(kept.values(), key=lambda finding: order[finding.oracle]):
        kind, _, place = finding.root
        said.setdefault((kind, place, finding.diagnosis), finding)
    first = {finding.case_id for finding in said.values()}
    return [_with_interface(examination, f) for f in kept.values() if f.case_id in first]


def _with_interface(examination: Examination, finding: Finding) -> Finding:
    """Return the finding with the interfaces under which its case passes."""
    if finding.oracle == PROCESS:
        return finding
    sentence = attempt(
        "the other interfaces",
        lambda: interface_sentence(examination.worker, examination.operation, finding.case),
        str,
    )
    return msgspec.structs.replace(finding, interface=sentence)


def advice_of(examination: Examination, *, with_outputs: bool = True) -> list[Finding]:
    """Return the findings that do not fail the candidate, without those of another cause.

    A field that is wrong in the smallest case of one root cause follows from that in others too.
    """
    groups = {root: root_cause.groups for root, root_cause in examination.roots.by_root.items()}
    kept: list[Occurrence] = []
    advised = examination.counts.advised
    for root, advice in sorted(advised.items(), key=lambda item: len(item[1].beside)):
        causes = [
            cause for cause in groups if any(beside.follows_from(cause) for beside in advice.beside)
        ]
        accounted = {group for cause in causes for group in groups[cause]}
        if causes and advice.failure.oracle in WITHOUT_REFERENCE:
            continue
        if advice.failure.group in accounted or any(map(advice.failure.follows_from, groups)):
            continue
        groups[root] = frozenset(failure.group for failure in advice.beside)
        kept.append(advice)
    findings = [
        _finding(examination, advice, advice.tally, advice.tally.cases, with_outputs=with_outputs)
        for advice in kept
    ]
    return [_with_left_out(examination, finding) for finding in findings]


def _with_left_out(examination: Examination, finding: Finding) -> Finding:
    """Return the finding; of a hang with the number of cases that were not run because of it."""
    if finding.root[1] != PROCESS:
        return finding
    words = [f"{count} of {name}" for name, count in examination.left_out.items() if count]
    kinds = "malformed cases"
    if not finding.case.fault:
        words, kinds = [str(examination.spared[finding.unreal])], "cases of this kind"
    elif finding.root[2] != LATE:
        words = []
    if not any(word != "0" for word in words):
        return finding
    message = f"{finding.message}; further {kinds} not run: {', '.join(words)}"
    return msgspec.structs.replace(finding, message=message)


def deviation_results(
    examination: Examination, *, with_stale: bool, with_outputs: bool = True
) -> list[DeviationResult]:
    """Return the known deviations that occurred; `with_stale` adds those that did not."""
    return [
        _deviation(examination, deviation, with_outputs=with_outputs)
        for deviation in examination.deviations
        if deviation.covers(examination.operation.name)
        and (
            deviation.id in examination.counts.occurred
            # An entry for all operations need not occur in each.
            or (with_stale and examination.operation.name in deviation.operations)
        )
    ]


def _deviation(
    examination: Examination, deviation: Deviation, *, with_outputs: bool
) -> DeviationResult:
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
    occurrence = examination.counts.occurred.get(deviation.id)
    if occurrence is None:
        return stale
    tally = occurrence.tally
    return msgspec.structs.replace(
        stale,
        cases=tally.cases,
        oracles=tuple(sorted(tally.oracles, key=list(ORACLES).index)),
        fields=tuple(sorted(tally.fields)),
        kinds=tuple(kind for kind in Kind if kind in tally.kinds),
        shown=_finding(
            examination, occurrence, tally, tally.cases, deviation.id, with_outputs=with_outputs
        ),
    )


def _finding(
    examination: Examination,
    cause: RootCause | Occurrence,
    tally: Tally,
    cases: int,
    name: str = "",
    *,
    with_outputs: bool,
) -> Finding:
    smallest, first = cause.smallest, cause.first
    case, candidate = smallest.case, examination.candidate
    failure = named_by_calls(cause.failure, case)
    explanation, outputs, engine = Explanation([], ""), list[Difference](), ""
    if with_outputs and isinstance(cause, RootCause):
        engine = attempt(
            "the engine", lambda: engine_sentence(candidate, case, cause.failure), lambda _: ""
        )
    if with_outputs:
        explanation, outputs = attempt(
            "the expected values",
            lambda: _explained(examination, case),
            lambda fault: (Explanation([], fault), []),
        )
    name = name or f"{failure.oracle}/{failure.field}"
    identity = f"{case.operation}/{candidate.name}/{name}"
    return Finding(
        id=hashlib.blake2b(identity.encode(), digest_size=4).hexdigest(),
        root=cause.failure.root,
        operation=case.operation,
        candidate=candidate.name,
        device=candidate.lane,
        oracle=failure.oracle,
        kind=failure.kind,
        field=failure.where or ("" if failure.oracle in _WITHOUT_FIELD else failure.field),
        place=failure.place,
        fields=tuple(sorted(tally.fields)),
        diagnosis=heading(failure, tally.explained, tally.diagnosed),
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
        no_snippet=explanation.no_snippet,
        arguments=explanation.arguments,
        failed_cases=cases,
        evidence={
            origin: Evidence(tally.shown[origin], count)
            for origin, count in examination.counts.origins.items()
        },
        unreal=examination.operation.why_unreal(case),
        function=examination.worker.places.get(case.operation, ""),
        kernel=cause.kernel if isinstance(cause, RootCause) else "",
        engine=engine,
        command="",
        outputs=outputs,
        log=failure.log or explanation.log,
    )


def _explained(examination: Examination, case: Case) -> tuple[Explanation, list[Difference]]:
    explanation = examination.worker.explain(case)
    return explanation, [msgspec.convert(output, Difference) for output in explanation.outputs]
