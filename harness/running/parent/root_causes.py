"""Root causes of findings: one operation of a candidate may fail because of another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Finding
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.parent.plan import Plan
from attnproof.harness.running.task.further_calls import failures_of_further_calls
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.running.task.workers import Worker

_MOST_S = 30.0
"""Seconds for all candidates together."""


def link(outcomes: list[Outcome], plan: Plan) -> list[Outcome]:
    """Return the outcomes; a finding that follows from another operation's is named there.

    The failed operation keeps its verdict, and has the root cause as its reason
    (KeyboardInterrupt).
    """
    end = time.monotonic() + _MOST_S
    for candidate in plan.candidates:
        failed = {
            outcome.result.name: outcome.findings
            for outcome in outcomes
            if outcome.result.candidate == candidate.name and outcome.findings
        }
        if len(failed) < 2:
            continue
        lanes = {name: candidate.judging(name) for name in failed}  # one process calls all of them
        worker_candidate = max(lanes.values(), key=lambda each: each.lane == "interpreter")
        operations = {o.name: o for o in plan.operations if o.name in failed}
        cured = {name: set[str]() for name in failed}
        for name in failed:
            if time.monotonic() < end:
                cured[name] = set(_cured_by(name, failed, worker_candidate, operations, plan))
        outcomes = _linked(outcomes, candidate, failed, cured)
    return outcomes


def _cured_by(
    name: str,
    failed: dict[str, list[Finding]],
    candidate: Candidate,
    operations: dict[str, Operation],
    plan: Plan,
) -> Iterator[str]:
    """Yield the ids of other operations' findings that pass with the reference's `name`."""
    names = operations[name].call.names(name)
    if names != (name,):  # a sequence: it is no part of another operation
        return
    try:
        worker = Worker(
            candidate,
            operations,
            timeout_s=plan.settings.timeout_s,
            memory_bytes=plan.settings.memory_bytes,
            exchanged=names,
        )
    except InfrastructureError:
        return
    try:
        for other, findings in failed.items():
            for finding in findings if other != name else ():
                interrupt.check()
                failures = worker.judge(finding.case).failures
                failures = failures or failures_of_further_calls(worker, finding.case)
                if not any(failure.kind in candidate.judged for failure in failures):
                    yield finding.id
    except InfrastructureError:
        return
    finally:
        worker.stop()


def _linked(
    outcomes: list[Outcome],
    candidate: Candidate,
    failed: dict[str, list[Finding]],
    cured: dict[str, set[str]],
) -> list[Outcome]:
    """Return the outcomes without findings that another operation's function cures."""
    cause_of: dict[str, str] = {}
    for name, findings in failed.items():
        for finding in findings:
            causes = [
                other
                for other in failed
                if finding.id in cured[other]
                and not any(other_finding.id in cured[name] for other_finding in failed[other])
            ]
            if causes:
                cause_of[finding.id] = causes[0]
    also: dict[str, list[str]] = {}
    for name, findings in failed.items():
        for finding in findings:
            if finding.id in cause_of:
                root = _root(finding, failed[cause_of[finding.id]])
                also.setdefault(root.id, []).append(name)
    return [
        _with_links(outcome, cause_of, also)
        if outcome.result.candidate == candidate.name
        else outcome
        for outcome in outcomes
    ]


def _root(finding: Finding, findings: list[Finding]) -> Finding:
    """Return the finding of the same field, of the same diagnosis, or the first one."""
    field = _field(finding)
    alike = [other for other in findings if _field(other) == field]
    alike += [other for other in findings if other.diagnosis == finding.diagnosis]
    return next(iter(alike), findings[0])


def _field(finding: Finding) -> str:
    return finding.place.field.rpartition(": ")[2] if finding.place else ""


def _with_links(outcome: Outcome, cause_of: dict[str, str], also: dict[str, list[str]]) -> Outcome:
    kept = [
        msgspec.structs.replace(finding, also=tuple(dict.fromkeys(also.get(finding.id, ()))))
        for finding in outcome.findings
        if finding.id not in cause_of
    ]
    causes = dict.fromkeys(cause_of[f.id] for f in outcome.findings if f.id in cause_of)
    result = outcome.result
    if causes and not kept:
        reason = f"fails because of {', '.join(causes)}"
        result = msgspec.structs.replace(result, reason=result.reason or reason)
    return msgspec.structs.replace(outcome, findings=kept, result=result)
