"""Everything that is done to one operation of one candidate, in its own process."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from hypothesis.database import DirectoryBasedExampleDatabase

from harness.model.candidate import Candidate
from harness.model.case import Batch, Sourced, decode, encode
from harness.model.operation import Operation
from harness.model.run import Difference, Finding, OperationResult, OracleCount
from harness.model.verdict import ORACLES
from harness.running.examination import Examination, Found, TooDeadly
from harness.running.fuzz import fuzz
from harness.running.ledger import Ledger
from harness.running.workers import CandidateUnloadableError, InvalidCaseError, Worker

_NO_FIELDS = ("process", "errors")
"""Oracles whose failures, told apart by their kind, need not be about a field."""


LARGE_PATIENCE = 15
"""A case of real size may take so many times as long: the reference is a loop in float64."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does, as resolved from the command line."""

    examples: int = 200
    """Cases that Hypothesis draws for each operation and candidate."""
    seconds: float = 0.0
    """Further fuzzing for each operation and candidate, in seconds."""
    seed: int = 0
    timeout_s: float = 20.0
    """How long a candidate may take over one case, all its calls together."""
    memory_bytes: int = 4 << 30
    """How much a candidate may allocate beyond what the process already has."""
    examples_db: str = ".attnproof/examples"
    """Folder of Hypothesis's example database, "" to remember nothing."""


class Outcome(msgspec.Struct):
    """What a task hands back."""

    result: OperationResult
    findings: list[Finding]


def examine(
    operation: Operation,
    candidate: Candidate,
    settings: Settings,
    steps: list[tuple[str, Batch]],
    corpus: list[Sourced],
    ledger_path: Path,
    progressed: Callable[[int], None] = lambda _cases: None,
) -> Outcome:
    """Fuzz, boundaries, trace steps, corpus and memory of one operation and candidate.

    An interrupt ends it early: what was found so far is returned as UNVERIFIED.
    """
    started = time.monotonic()
    result = OperationResult(
        name=operation.name,
        section=operation.section,
        candidate=candidate.name,
        device=candidate.lane,
        verdict="UNVERIFIED",
    )
    ledger = Ledger(ledger_path, operation.name, candidate.name)
    worker: Worker | None = None
    findings: list[Finding] = []
    try:
        worker = Worker(
            candidate,
            {operation.name: operation},
            timeout_s=settings.timeout_s,
            memory_bytes=settings.memory_bytes,
        )
        if operation.name not in worker.offers:
            result.verdict, result.reason = "NOT OFFERED", "the candidate has no such function"
            return Outcome(result, [])
        examination = Examination(operation, candidate, worker, ledger, progressed)
        try:
            _examine(examination, settings, steps, corpus)
            result.verdict = "FAIL" if examination.failed else "PASS"
        except KeyboardInterrupt:
            result.reason = f"interrupted after {examination.cases} cases"
        except TooDeadly:
            result.verdict = "FAIL"
            result.reason = f"stopped: the candidate died {worker.deaths} times"
        except InvalidCaseError as error:
            result.reason = f"the harness failed on {error}"
        _count(result, examination)
        findings = [_finding(found, examination) for found in examination.found.values()]
        findings = _distinct(findings)
        if findings:
            result.verdict = "FAIL"
    except KeyboardInterrupt:
        result.reason = "interrupted before the first case"
    except CandidateUnloadableError as error:
        result.reason = str(error)
    finally:
        if worker is not None:
            worker.stop()
        ledger.close()
    result.seconds = round(time.monotonic() - started, 3)
    return Outcome(result, findings)


def _examine(
    examination: Examination,
    settings: Settings,
    steps: list[tuple[str, Batch]],
    corpus: list[Sourced],
) -> None:
    operation = examination.operation
    first_seed = zlib.crc32(f"{settings.seed}/{operation.name}".encode())
    fuzz(examination, settings.examples, first_seed)
    device = examination.candidate.device
    for sourced in _explicit(operation, device, steps, corpus):
        _try(examination, sourced)
    if device == "cuda":
        with examination.worker.patient(LARGE_PATIENCE):
            for name, case in operation.large():
                _try(examination, Sourced(case, "boundary", name))
    memory = _Memory(examination, settings.examples_db)
    for sourced in memory.cases():
        _try(examination, sourced)
    deadline = time.monotonic() + settings.seconds
    for more in range(1, 1_000_000):
        if time.monotonic() >= deadline:
            break
        fuzz(examination, settings.examples, first_seed + 1000 * more)
    examination.repeat_in_fresh_process()
    memory.keep()


def _explicit(
    operation: Operation, device: str, steps: list[tuple[str, Batch]], corpus: list[Sourced]
) -> Iterator[Sourced]:
    faults = operation.faults_on(device)
    faults_left = dict.fromkeys(faults, 2)
    for name, case in operation.boundaries():
        yield Sourced(case, "boundary", name)
        for fault in [fault for fault, left in faults_left.items() if left]:
            if faults[fault].applies(case):
                faults_left[fault] -= 1
                spoilt = msgspec.structs.replace(case, fault=fault)
                yield Sourced(spoilt, "boundary", f"{name}: {fault}")
    for source, batch in steps:
        for case in operation.from_batch(batch):
            yield Sourced(case, "trace", source)
    for sourced in corpus:
        case = sourced.case
        if case.operation == operation.name and (not case.fault or case.fault in faults):
            yield sourced


def _try(examination: Examination, sourced: Sourced) -> None:
    """Judge one explicit case; a new root cause is shrunk at once."""
    news = examination.news(examination.check(sourced))
    if news is None:
        return
    failure, smallest = examination.minimise(news, sourced)
    examination.record(failure, smallest, sourced)


class _Memory:
    """Failing cases of earlier runs, in Hypothesis's example database."""

    def __init__(self, examination: Examination, folder: str) -> None:
        self._examination = examination
        self._database = DirectoryBasedExampleDatabase(folder) if folder else None
        pair = f"{examination.operation.name}/{examination.candidate.target}"
        self._key = f"attnproof/{pair}/{examination.candidate.lane}".encode()

    def cases(self) -> Iterator[Sourced]:
        """What failed before, smallest first; what no longer means anything is dropped."""
        if self._database is None:
            return
        for data in sorted(self._database.fetch(self._key), key=lambda data: (len(data), data)):
            try:
                case = decode(data)
            except msgspec.MsgspecError:
                self._database.delete(self._key, data)
                continue
            if not self._examination.check(Sourced(case, "corpus", "failed in an earlier run")):
                self._database.delete(self._key, data)
            yield Sourced(case, "corpus", "failed in an earlier run")

    def keep(self) -> None:
        """Remember the smallest case of every root cause."""
        if self._database is not None:
            for found in self._examination.found.values():
                self._database.save(self._key, encode(found.smallest.case))


def _count(result: OperationResult, examination: Examination) -> None:
    result.cases = examination.cases
    result.checks = sum(examination.checks)
    result.failed = examination.failed
    result.origins = {str(origin): count for origin, count in examination.origins.items()}
    for name, checks in zip(ORACLES, examination.checks, strict=True):
        failed = examination.failures_by_oracle.get(name, 0)
        lived = examination.cases if name == "process" else checks
        # No check at all: the operation has nothing for that oracle, such as tensors.
        if lived or failed or result.verdict == "UNVERIFIED":
            result.oracles[name] = OracleCount(checks=lived, failed=failed)


def _finding(found: Found, examination: Examination) -> Finding:
    failure, smallest, first = found.failure, found.smallest, found.first
    case, candidate = smallest.case, examination.candidate
    explanation = examination.worker.explain(case)
    identity = f"{case.operation}/{candidate.name}/{failure.oracle}/{failure.field}"
    path = f"cases/{case.id}.json"
    return Finding(
        id=hashlib.blake2b(identity.encode(), digest_size=4).hexdigest(),
        operation=case.operation,
        candidate=candidate.name,
        device=candidate.lane,
        oracle=failure.oracle,
        field=failure.where or ("" if failure.oracle in _NO_FIELDS else failure.field),
        diagnosis=failure.diagnosis,
        message=failure.message,
        expected=failure.expected,
        got=failure.got,
        case=case,
        case_id=case.id,
        case_path=path,
        origin=smallest.origin,
        source=smallest.source,
        requests=case.num_requests,
        tokens=case.num_tokens,
        requests_before=first.case.num_requests,
        tokens_before=first.case.num_tokens,
        steps=explanation.steps,
        steps_before=first.case.num_steps,
        snippet=explanation.snippet,
        failed_cases=examination.failed_by_root.get(failure.root, 0),
        command="",
        outputs=[msgspec.convert(output, Difference) for output in explanation.outputs],
        log=failure.log or explanation.log,
    )


def _distinct(findings: list[Finding]) -> list[Finding]:
    """One finding a smallest case: the oracle that judges first speaks for the others."""
    order: dict[str, Any] = {name: index for index, name in enumerate(ORACLES)}
    kept: dict[str, Finding] = {}
    for finding in findings:
        other = kept.get(finding.case_id)
        if other is None or order[finding.oracle] < order[other.oracle]:
            kept[finding.case_id] = finding
    return list(kept.values())
