"""The examination of one operation of one candidate, from the first case to its findings."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import EngineStep, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import (
    Cause,
    DeviationResult,
    Finding,
    OperationResult,
    OracleCount,
    Reason,
    Verdict,
)
from attnproof.harness.model.verdict import ORACLES, PROCESS, cause_of
from attnproof.harness.operations.derived.derive import OWN
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.candidate_process import (
    CandidateUnloadableError,
    Launching,
)
from attnproof.harness.running.task.deviations import DeviationError, deviations_of
from attnproof.harness.running.task.examination import Examination, TooManyDeaths
from attnproof.harness.running.task.findings import advice_of, deviation_results, findings_of
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.running.task.root_causes import RootCause
from attnproof.harness.running.task.run_cases import run_cases
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.workers import InvalidCaseError, Worker
from attnproof.reference.definition.definition import DefinitionError

_HURRY_S = 2.0
"""Seconds for all explanations of findings after an interrupt."""

BEFORE_FIRST_CASE = "interrupted before the first case"
"""Reason of an operation of which no case has ended."""
FAIL_ALONE = "fail by themselves"
"""End of the reason why an operation was verified without functions of the candidate."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of one task."""

    result: OperationResult
    findings: list[Finding]
    advice: list[Finding] = []
    """Findings of classes that do not fail the candidate."""
    deviations: list[DeviationResult] = []
    notes: list[str] = []
    """A sentence on each remembered case that was dropped."""
    root_causes: list[RootCause] = msgspec.field(default_factory=list, name="found")  # in ledgers
    """Root causes that are not among `Settings.known`."""


class _Parts(msgspec.Struct, frozen=True):
    """Results of an examination; the fields are those of `Outcome`."""

    findings: list[Finding] = []
    advice: list[Finding] = []
    deviations: list[DeviationResult] = []
    counts: dict[str, Any] = {}
    """Fields of an `OperationResult`."""


class _Conclusion(NamedTuple):
    """The verdict of an examination."""

    verdict: Verdict
    reason: Reason | None = None
    """Reason for ending before the last case."""


def examine(
    operation: Operation,
    candidate: Candidate,
    settings: Settings,
    steps: list[EngineStep],
    corpus: list[Sourced],
    ledger_path: Path,
    progressed: Callable[[Outcome], None] = lambda _interim: None,
    by: Launching | None = None,
    exchanged: tuple[str, ...] = (),
) -> Outcome:
    """Run the drawn cases, boundaries, engine steps, corpus and saved failures.

    `progressed` is called repeatedly with the outcome that an interrupt would have now, without
    outputs: the process may be killed in a call that no interrupt ends. The functions named in
    `exchanged` are exchanged for the reference's. An interrupt ends the
    examination early; the outcome is UNVERIFIED and holds what was found so far.
    """
    started = time.monotonic()
    ledger = Ledger(ledger_path, operation.name, candidate.name)
    worker: Worker | None = None
    examination: Examination | None = None
    conclusion, parts = _Conclusion("UNVERIFIED"), _Parts()
    notes: list[str] = []

    def outcome(conclusion: _Conclusion, parts: _Parts) -> Outcome:
        seconds = round(time.monotonic() - started, 3)
        result = _result(operation, candidate, conclusion, parts, seconds)
        roots = examination.roots.by_root.values() if examination is not None else ()
        new = [cause for cause in roots if cause not in settings.known]
        return Outcome(result, parts.findings, parts.advice, parts.deviations, notes, new)

    try:
        known = deviations_of(candidate)
        worker = Worker(
            candidate,
            {operation.name: operation},
            timeout_s=settings.timeout_s,
            memory_bytes=settings.memory_bytes,
            by=by,
            exchanged=exchanged,
        )
        skipped = _skipped(worker, operation, exchanged)
        if skipped is not None:
            conclusion = skipped
        else:
            examination = Examination(
                operation,
                candidate,
                settings,
                worker,
                ledger,
                lambda now: progressed(outcome(_interrupted(now), _interim(now))),
                known,
                notes,
            )
            if exchanged:
                text = f"{operation.name} [{candidate.name}]: ran with the reference's "
                notes.append(f"{text}{', '.join(exchanged)}; the candidate's {FAIL_ALONE}")
            conclusion = _concluded(examination, settings, steps, corpus)
            notes += _uncompared(examination)
            small = not settings.usual_depth or examination.costly_share > 1
            try:
                parts = _explained(examination, conclusion, small=small)
            except KeyboardInterrupt:  # while what was found is explained
                conclusion = _interrupted(examination)
                parts = _explained(examination, conclusion, small=small)
            conclusion = _certain(examination, conclusion)
    except KeyboardInterrupt:
        if examination is not None:
            conclusion, parts = _interrupted(examination), _interim(examination)
        else:
            reason = Reason(Cause.INTERRUPTED, BEFORE_FIRST_CASE)
            conclusion = conclusion._replace(reason=reason)
    except CandidateUnloadableError as error:
        conclusion = conclusion._replace(reason=Reason(Cause.UNLOADABLE, str(error)))
    except DeviationError as error:
        conclusion = conclusion._replace(reason=Reason(Cause.DEVIATIONS_FILE, str(error)))
    finally:
        if worker is not None:
            worker.stop()
        ledger.close()
    return outcome(conclusion, parts)


def _uncompared(examination: Examination) -> list[str]:
    """Return a note on what of the candidate's outputs is not compared."""
    operation, worker = examination.operation, examination.worker
    if operation.contract.uncompared is None:
        return []
    name, case = next(iter(operation.inputs.boundaries()))
    sourced = examination.in_interface(Sourced(case, "boundary", name))
    try:
        held = worker.outputs(sourced.case)
    except (CandidateUnloadableError, InvalidCaseError):  # the verdict stands without it
        return []
    clause = operation.contract.uncompared({str(place): value for place, value in held.items()})
    return [f"{operation.name} [{examination.candidate.name}]: {clause}"] if clause else []


def _result(
    operation: Operation,
    candidate: Candidate,
    conclusion: _Conclusion,
    parts: _Parts,
    seconds: float,
) -> OperationResult:
    return OperationResult(
        name=operation.name,
        section=operation.section,
        candidate=candidate.name,
        device=candidate.lane,
        verdict="FAIL" if parts.findings else conclusion.verdict,
        reason=conclusion.reason.text if conclusion.reason else "",
        cause=conclusion.reason.cause if conclusion.reason else None,
        log=conclusion.reason.log if conclusion.reason else "",
        seconds=seconds,
        advice=len(parts.advice),
        **parts.counts,
    )


def _skipped(
    worker: Worker, operation: Operation, exchanged: tuple[str, ...]
) -> _Conclusion | None:
    """Return the verdict if the candidate has nothing to examine, None otherwise."""
    lacking = worker.why_not_offered(operation.name)
    if lacking is not None:
        return _Conclusion("NOT OFFERED", lacking)
    own = worker.offers[operation.name]
    if exchanged and set(own) <= set(exchanged):
        text = f"not run: {', '.join(own)} of the candidate {FAIL_ALONE}"
        return _Conclusion("UNVERIFIED", Reason(Cause.PARTS_FAIL, text))
    return None


def _concluded(
    examination: Examination,
    settings: Settings,
    steps: list[EngineStep],
    corpus: list[Sourced],
) -> _Conclusion:
    """Run all cases; return the verdict, with a reason if the examination ended early."""
    try:
        run_cases(examination, settings, steps, corpus)
    except KeyboardInterrupt:
        return _interrupted(examination)
    except CandidateUnloadableError as error:
        reason = Reason(Cause.UNLOADABLE, f"stopped: {error}")
        return _Conclusion("FAIL" if examination.counts.failed else "UNVERIFIED", reason)
    except TooManyDeaths:
        text = f"stopped: the candidate died {examination.worker.deaths} times"
        reason = Reason(Cause.TOO_MANY_DEATHS, text)
        return _Conclusion("FAIL" if examination.counts.failed else "UNVERIFIED", reason)
    except InvalidCaseError as error:
        reason = Reason(error.cause, error.text, error.log)
        return _Conclusion("UNVERIFIED", reason)
    except DeviationError as error:
        return _Conclusion("UNVERIFIED", Reason(Cause.DEVIATIONS_FILE, str(error)))
    except InfrastructureError as error:
        return _Conclusion("UNVERIFIED", Reason(Cause.MACHINE, f"stopped: {error}"))
    except DefinitionError as error:  # of a function of `values`, on a later case
        reason = Reason(Cause.REFERENCE_FAILED, str(error), traceback.format_exc())
        return _Conclusion("UNVERIFIED", reason)
    if examination.counts.failed:
        return _Conclusion("FAIL")
    if not examination.counts.origins.get("fuzz"):
        return _Conclusion("UNVERIFIED", Reason(Cause.NOTHING_DRAWN, "no case could be drawn"))
    return _Conclusion("DEVIATES" if examination.counts.occurred else "PASS")


def _interrupted(examination: Examination) -> _Conclusion:
    text = f"interrupted after {examination.counts.cases} cases"
    return _Conclusion("UNVERIFIED", Reason(Cause.INTERRUPTED, text))


def _explained(examination: Examination, conclusion: _Conclusion, *, small: bool) -> _Parts:
    """End the candidate's process; return what was found, with outputs.

    After an interrupt all outputs together may take some seconds. A `small` examination calls no
    known deviation stale.
    """
    worker = examination.worker
    if conclusion.reason is not None and conclusion.reason.cause is Cause.INTERRUPTED:
        examination.report()  # perhaps the parent does not wait until the candidate has ended
        interrupt.acknowledge()
        worker.hurry(_HURRY_S)
        if examination.end_process() or examination.roots.by_root or examination.counts.occurred:
            with suppress(CandidateUnloadableError):  # then without outputs
                worker.start()
    with_stale = conclusion.reason is None and not small
    findings = findings_of(examination)
    deviations = deviation_results(examination, with_stale=with_stale)
    if examination.end_process():
        with suppress(CandidateUnloadableError):
            worker.start()
        findings = findings_of(examination)
    counts = _counts(examination, conclusion.verdict)
    return _Parts(findings, advice_of(examination), deviations, counts)


def _interim(examination: Examination) -> _Parts:
    """Return what was found so far, without outputs."""
    return _Parts(
        findings_of(examination, with_outputs=False),
        advice_of(examination, with_outputs=False),
        deviation_results(examination, with_stale=False, with_outputs=False),
        _counts(examination, "UNVERIFIED"),
    )


def _certain(examination: Examination, conclusion: _Conclusion) -> _Conclusion:
    """Return the verdict; UNVERIFIED if a failure was seen once and not again."""
    seen = examination.certainty.unrepeated
    if not seen or conclusion.verdict == "FAIL" or conclusion.reason is not None:
        return conclusion
    more = f", and {len(seen) - 1} more" if len(seen) > 1 else ""
    text = f"once, not again: {seen[0]}{more}"
    return _Conclusion("UNVERIFIED", Reason(Cause.NOT_REPEATED, text))


def _counts(examination: Examination, verdict: Verdict) -> dict[str, Any]:
    """Return the fields of an `OperationResult` that count cases and checks."""
    oracles = {}
    for name, count in zip(ORACLES, examination.counts.checks, strict=True):
        failed = examination.counts.failures_by_oracle.get(name, 0)
        known = examination.counts.known_by_oracle.get(name, 0)
        checks = examination.counts.cases if name == PROCESS else count
        # Leave out an oracle that has nothing to judge here, such as tensors.
        if checks or failed or known or verdict == "UNVERIFIED":
            oracles[name] = OracleCount(checks=checks, failed=failed, known=known)
    return {
        "cases": examination.counts.cases,
        "checks": sum(examination.counts.checks),
        "failed": examination.counts.failed,
        "known": len(examination.counts.known),
        "origins": dict(examination.counts.origins)
        | ({"shrinking": examination.counts.shrinking} if examination.counts.shrinking else {}),
        "oracles": oracles,
        "causes": tuple(sorted({*map(cause_of, examination.counts.failed_by_root)})),
        "steps": {name: examination.counts.steps[name] for name in _own_methods(examination)},
        "features": {
            origin: {f"{cells:x}": number for cells, number in counts.items()}
            for origin, counts in examination.counts.features.items()
        },
    }


def _own_methods(examination: Examination) -> tuple[str, ...]:
    """Return the methods of a class that a user defined."""
    call = examination.operation.call
    is_own = examination.operation.section == OWN
    return call.methods if is_own and isinstance(call, ClassCall) else ()
