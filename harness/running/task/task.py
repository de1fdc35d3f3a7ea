"""The examination of one operation of one candidate, from the first case to its findings."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from attnproof.harness.cases.variation.altered_calls import has_fault
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import EngineStep, Sourced
from attnproof.harness.model.fault import Fault
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
from attnproof.harness.model.verdict import ORACLES, PROCESS
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import faults_for
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.candidate_process import (
    CandidateUnloadableError,
    Launching,
)
from attnproof.harness.running.task.deviations import DeviationError, deviations_of
from attnproof.harness.running.task.examination import Examination, Found, TooManyDeaths
from attnproof.harness.running.task.explicit_cases import cases_of_steps, explicit_cases
from attnproof.harness.running.task.findings import advice_of, deviation_results, findings_of
from attnproof.harness.running.task.further_calls import CASES_PER_FURTHER, make_further_calls
from attnproof.harness.running.task.fuzz import fuzz
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.running.task.more_cases import (
    altered,
    ids_of_many_rows,
    is_interpreted_soon,
    more_cases,
)
from attnproof.harness.running.task.real_cases import real_cases
from attnproof.harness.running.task.saved_failures import SavedFailures
from attnproof.harness.running.task.shrink import SHRINK_SECONDS
from attnproof.harness.running.task.workers import InvalidCaseError, Worker

_LARGE_PATIENCE = 15
"""Factor on the timeout of a case of real size, where the reference loops in float64."""
_MOST_PASSES = 1_000_000
_HURRY_S = 2.0
"""Seconds for all explanations of findings after an interrupt."""

FAIL_ALONE = "fail by themselves"
"""End of the reason why an operation was verified without functions of the candidate."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run, resolved from the command line."""

    examples: int = 207
    """Cases that Hypothesis draws for each operation and candidate."""
    seconds: float = 0.0
    """Further fuzzing for each operation and candidate, in seconds."""
    seed: int = 0
    vary: bool = True
    """True to run cases of several critical features, variations of other cases and altered
    values."""
    timeout_s: float = 20.0
    """Timeout of one case, all calls of the candidate together, in seconds."""
    shrink_seconds: float = SHRINK_SECONDS
    """Time limit of shrinking one finding: once for Hypothesis, and once for `shrink`."""
    memory_bytes: int = 4 << 30
    """Bytes that a candidate may allocate beyond those of its process before the first call."""
    examples_db: str = ".attnproof/examples"
    """Folder of Hypothesis's example database, "" to save nothing."""
    costly_share: int = 8
    """If cases are costly (`is_costly`), one in this many drawn cases is run, and one in this
    many cases is called twice on equal input."""
    usual_depth: bool = True
    """True if as many cases as usual are run: only then is an absent known deviation stale."""
    minimise_known: bool = True
    """True to shrink the smallest case of each known deviation; `bench` skips this."""
    boundaries: bool = True
    """True to run boundaries and their faults, which are the same with every seed."""
    known: tuple[Found, ...] = ()
    """Root causes that earlier examinations found: their failures are counted, not shrunk."""


def is_costly(operation: Operation, candidate: Candidate) -> bool:
    """True if few drawn cases are run unless a run is thorough.

    A case takes tens of milliseconds in the interpreter and in a forked process. `optimized`
    without its checks is the code that is judged with them too.
    """
    return candidate.lane == "interpreter" or operation.call.isolated or not candidate.checked


class Outcome(msgspec.Struct, frozen=True):
    """The result of one task."""

    result: OperationResult
    findings: list[Finding]
    advice: list[Finding] = []
    """Findings of classes that do not fail the candidate."""
    deviations: list[DeviationResult] = []
    notes: list[str] = []
    """A sentence on each remembered case that was dropped."""
    found: list[Found] = []
    """Root causes that are not among `Settings.known`."""


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
    progressed: Callable[[int], None] = lambda _cases: None,
    by: Launching | None = None,
    exchanged: tuple[str, ...] = (),
) -> Outcome:
    """Run the drawn cases, boundaries, engine steps, corpus and saved failures.

    `progressed` is called repeatedly with the number of cases so far. The functions named in
    `exchanged` are exchanged for the reference's. An interrupt ends the
    examination early; the outcome is UNVERIFIED and holds what was found so far.
    """
    started = time.monotonic()
    ledger = Ledger(ledger_path, operation.name, candidate.name)
    worker: Worker | None = None
    conclusion = _Conclusion("UNVERIFIED")
    counts: dict[str, Any] = {}
    findings: list[Finding] = []
    advice: list[Finding] = []
    deviations: list[DeviationResult] = []
    notes: list[str] = []
    found: list[Found] = []
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
            share = settings.costly_share if is_costly(operation, candidate) else 1
            examination = Examination(
                operation,
                candidate,
                worker,
                ledger,
                progressed,
                known,
                candidate.judged,
                costly_share=share,
                shrink_seconds=settings.shrink_seconds,
                found={one.root: one for one in settings.known},
            )
            notes = examination.notes
            if exchanged:
                text = f"{operation.name} [{candidate.name}]: ran with the reference's "
                notes.append(f"{text}{', '.join(exchanged)}; the candidate's {FAIL_ALONE}")
            conclusion = _concluded(examination, settings, steps, corpus)
            small = not settings.usual_depth or share > 1
            try:
                findings, deviations = _explained(examination, conclusion, small=small)
            except KeyboardInterrupt:  # while what was found is explained
                conclusion = _interrupted(examination)
                findings, deviations = _explained(examination, conclusion, small=small)
            conclusion = _certain(examination, conclusion)
            advice = advice_of(examination)
            found = [one for one in examination.found.values() if one not in settings.known]
            counts = _counts(examination, conclusion.verdict)
    except KeyboardInterrupt:
        reason = Reason(Cause.INTERRUPTED, "interrupted before the first case")
        conclusion = conclusion._replace(reason=reason)
    except CandidateUnloadableError as error:
        conclusion = conclusion._replace(reason=Reason(Cause.UNLOADABLE, str(error)))
    except DeviationError as error:
        conclusion = conclusion._replace(reason=Reason(Cause.DEVIATIONS_FILE, str(error)))
    finally:
        if worker is not None:
            worker.stop()
        ledger.close()
    result = OperationResult(
        name=operation.name,
        section=operation.section,
        candidate=candidate.name,
        device=candidate.lane,
        verdict="FAIL" if findings else conclusion.verdict,
        reason=conclusion.reason.text if conclusion.reason else "",
        cause=conclusion.reason.cause if conclusion.reason else None,
        seconds=round(time.monotonic() - started, 3),
        advice=len(advice),
        **counts,
    )
    return Outcome(result, findings, advice, deviations, notes, found)


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
        _run_cases(examination, settings, steps, corpus)
    except KeyboardInterrupt:
        return _interrupted(examination)
    except CandidateUnloadableError as error:
        reason = Reason(Cause.UNLOADABLE, f"stopped: {error}")
        return _Conclusion("FAIL" if examination.failed else "UNVERIFIED", reason)
    except TooManyDeaths:
        text = f"stopped: the candidate died {examination.worker.deaths} times"
        reason = Reason(Cause.TOO_MANY_DEATHS, text)
        return _Conclusion("FAIL" if examination.failed else "UNVERIFIED", reason)
    except InvalidCaseError as error:
        reason = Reason(Cause.INVALID_CASE, f"the harness failed on {error}")
        return _Conclusion("UNVERIFIED", reason)
    except DeviationError as error:
        return _Conclusion("UNVERIFIED", Reason(Cause.DEVIATIONS_FILE, str(error)))
    except InfrastructureError as error:
        return _Conclusion("UNVERIFIED", Reason(Cause.MACHINE, f"stopped: {error}"))
    if examination.failed:
        return _Conclusion("FAIL")
    if not examination.origins.get("fuzz"):
        return _Conclusion("UNVERIFIED", Reason(Cause.NOTHING_DRAWN, "no case could be drawn"))
    return _Conclusion("DEVIATES" if examination.occurred else "PASS")


def _interrupted(examination: Examination) -> _Conclusion:
    text = f"interrupted after {examination.cases} cases"
    return _Conclusion("UNVERIFIED", Reason(Cause.INTERRUPTED, text))


def _explained(
    examination: Examination, conclusion: _Conclusion, *, small: bool
) -> tuple[list[Finding], list[DeviationResult]]:
    """End the candidate's process; return findings and known deviations with their outputs.

    After an interrupt all outputs together may take some seconds. A `small` examination calls no
    known deviation stale.
    """
    worker = examination.worker
    if conclusion.reason is not None and conclusion.reason.cause is Cause.INTERRUPTED:
        interrupt.acknowledge()
        worker.hurry(_HURRY_S)
        if examination.end_process() or examination.found or examination.occurred:
            with suppress(CandidateUnloadableError):  # then without outputs
                worker.start()
    with_stale = conclusion.reason is None and not small
    findings = findings_of(examination)
    deviations = deviation_results(examination, with_stale=with_stale)
    if examination.end_process():
        with suppress(CandidateUnloadableError):
            worker.start()
        findings = findings_of(examination)
    return findings, deviations


def _certain(examination: Examination, conclusion: _Conclusion) -> _Conclusion:
    """Return the verdict; UNVERIFIED if a crash or a hang was seen once and not again."""
    seen = examination.certainty.unrepeated
    if not seen or conclusion.verdict == "FAIL" or conclusion.reason is not None:
        return conclusion
    more = f", and {len(seen) - 1} more" if len(seen) > 1 else ""
    text = f"once, not again: {seen[0]}{more}"
    return _Conclusion("UNVERIFIED", Reason(Cause.NOT_REPEATED, text))


def _run_cases(
    examination: Examination,
    settings: Settings,
    steps: list[EngineStep],
    corpus: list[Sourced],
) -> None:
    operation = examination.operation
    saved = SavedFailures(examination, settings.examples_db)
    first_seed = zlib.crc32(f"{settings.seed}/{operation.name}".encode())
    examples = -(-settings.examples // examination.costly_share)
    drawn = fuzz(examination, examples, first_seed)
    few = settings.examples < Settings().examples and settings.costly_share > 1
    interpreted = examination.candidate.lane == "interpreter"
    left_out = ids_of_many_rows(operation) if few and interpreted else set()
    boundaries = settings.boundaries
    faults = examination.early_faults
    kept = _runnable(examination, corpus, faults)
    for sourced in explicit_cases(
        operation, faults, steps, kept, left_out, with_boundaries=boundaries
    ):
        _judge(examination, sourced)
    if faults and boundaries and settings.vary:
        _run_altered(examination, examples)
    if settings.vary:
        real = [sourced.case for sourced in cases_of_steps(operation, steps)]
        tested = examination.tested_cells
        varied = more_cases(operation, drawn, examples, first_seed, real, tested)
        _run_varied(examination, varied)
    if examination.candidate.device != "cpu" and boundaries:
        _run_large(examination)
    for sourced in real_cases(examination):
        _judge(examination, sourced)
    remembered = list(saved.cases())
    for sourced in remembered:
        if not sourced.case.fault or examination.early_faults:
            _judge(examination, sourced)
            _judge_rest(examination, sourced)
    deadline = time.monotonic() + settings.seconds
    for more in range(1, _MOST_PASSES):
        if time.monotonic() >= deadline:
            break
        fuzz(examination, examples, first_seed + 1000 * more)
    if settings.minimise_known:
        for sourced in examination.minimise_known():
            _judge(examination, sourced)
    make_further_calls(examination, examples or CASES_PER_FURTHER * len(remembered))
    examination.repeat_in_fresh_process()
    if not examination.early_faults:
        others = [*corpus, *remembered]
        _run_malformed(examination, settings, others, examples)


def _run_large(examination: Examination) -> None:
    """Judge the cases of real size, which only a GPU computes in reasonable time."""
    with examination.worker.patient(_LARGE_PATIENCE):
        for name, case in examination.operation.inputs.large():
            _judge(examination, Sourced(case, "boundary", name))


def _run_varied(examination: Examination, varied: Iterable[Sourced]) -> None:
    """Judge the cases that the reference accepts, in the interpreter only small ones."""
    interpreted = examination.candidate.lane == "interpreter"
    for sourced in varied:
        if interpreted and not is_interpreted_soon(examination.operation, sourced.case):
            continue
        with suppress(InvalidCaseError):
            _judge(examination, sourced)


def _run_malformed(
    examination: Examination, settings: Settings, others: list[Sourced], examples: int
) -> None:
    """Run the faults on boundaries, the malformed cases among the others, and altered values.

    The process runs nothing else afterwards: code that trusts its input may write outside its
    memory.
    """
    operation = examination.operation
    faults = faults_for(operation, examination.candidate)
    if not faults:  # the candidate is given well-formed cases only
        return
    kept = _runnable(examination, others, faults)
    boundaries = settings.boundaries
    explicit = explicit_cases(operation, faults, [], kept, with_boundaries=boundaries)
    cases = [s for s in explicit if s.case.fault]
    for sourced in cases:
        _judge(examination, sourced)
    if boundaries and settings.vary:
        _run_altered(examination, examples)
    if cases:
        examination.worker.restart_warm()


def _runnable(
    examination: Examination, corpus: list[Sourced], faults: Mapping[str, Fault]
) -> list[Sourced]:
    """Return the operation's cases of a corpus; malformed ones only if there are faults to run."""
    operation, device = examination.operation, examination.candidate.device
    own = [one for one in corpus if one.case.operation == operation.name]
    return [
        one
        for one in own
        if not one.case.fault or (faults and has_fault(operation, one.case.fault, device))
    ]


def _run_altered(examination: Examination, examples: int) -> None:
    """Judge altered values, as long as the candidate refuses all malformed input."""
    for sourced in altered(examination.operation, examination.candidate, examples):
        if examination.accepts_malformed:
            return
        _judge(examination, sourced)


def _judge(examination: Examination, sourced: Sourced) -> None:
    """Judge one case that Hypothesis did not draw; shrink a new root cause at once."""
    sourced = examination.fitted(sourced)
    unexplained = examination.new_failure(examination.check(sourced))
    if unexplained is not None:
        examination.minimise_and_record(unexplained, sourced, sourced)


def _judge_rest(examination: Examination, sourced: Sourced) -> None:
    """Shrink the other root causes of a remembered case, which may be as large as it was found."""
    while (more := examination.new_failure(examination.check(sourced))) is not None:
        examination.minimise_and_record(more, sourced, sourced)


def _counts(examination: Examination, verdict: Verdict) -> dict[str, Any]:
    """Return the fields of an `OperationResult` that count cases and checks."""
    oracles = {}
    for name, made in zip(ORACLES, examination.checks, strict=True):
        failed = examination.failures_by_oracle.get(name, 0)
        known = examination.known_by_oracle.get(name, 0)
        checks = examination.cases if name == PROCESS else made
        # Leave out an oracle that has nothing to judge here, such as tensors.
        if checks or failed or known or verdict == "UNVERIFIED":
            oracles[name] = OracleCount(checks=checks, failed=failed, known=known)
    return {
        "cases": examination.cases,
        "checks": sum(examination.checks),
        "failed": examination.failed,
        "known": len(examination.known),
        "origins": dict(examination.origins)
        | ({"shrinking": examination.shrinking} if examination.shrinking else {}),
        "oracles": oracles,
        "features": {
            origin: {f"{cells:x}": number for cells, number in counts.items()}
            for origin, counts in examination.features.items()
        },
    }
