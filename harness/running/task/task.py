"""Everything that is done to one operation of one candidate, in its own process."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from hypothesis.database import DirectoryBasedExampleDatabase

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Batch, Sourced, decode, encode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import (
    DeviationResult,
    Finding,
    OperationResult,
    OracleCount,
    Verdict,
)
from attnproof.harness.model.verdict import ORACLES
from attnproof.harness.running.task.deviations import DeviationError, deviations_of
from attnproof.harness.running.task.examination import Examination, TooDeadly
from attnproof.harness.running.task.findings import deviation_results, findings_of
from attnproof.harness.running.task.fuzz import fuzz
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.running.task.workers import (
    CandidateUnloadableError,
    InvalidCaseError,
    Worker,
)

LARGE_PATIENCE = 15
"""A case of real size may take so many times as long: the reference is a loop in float64."""

NO_SUCH_FUNCTION = "the candidate has no such function"


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
    thorough: bool = True
    """Whether no fewer cases are run than usual: only then is a known deviation stale that
    does not show."""
    minimise_known: bool = True
    """Whether the case shown of a known deviation is made as small as can be: `bench`, which
    is asked for times, does without."""


class Outcome(msgspec.Struct):
    """What a task hands back."""

    result: OperationResult
    findings: list[Finding]
    deviations: list[DeviationResult] = []


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
    outcome = Outcome(result, [])
    try:
        deviations = deviations_of(candidate)
        worker = Worker(
            candidate,
            {operation.name: operation},
            timeout_s=settings.timeout_s,
            memory_bytes=settings.memory_bytes,
        )
        if operation.name not in worker.offers:
            result.verdict = "NOT OFFERED"
            result.reason = worker.withheld.get(operation.name, NO_SUCH_FUNCTION)
            return outcome
        examination = Examination(operation, candidate, worker, ledger, progressed, deviations)
        complete = _is_complete(examination, result, settings, steps, corpus)
        _count(result, examination)
        outcome.findings = findings_of(examination)
        stale = complete and settings.thorough
        outcome.deviations = deviation_results(examination, with_stale=stale)
        if outcome.findings:
            result.verdict = "FAIL"
    except KeyboardInterrupt:
        result.reason = "interrupted before the first case"
    except (CandidateUnloadableError, DeviationError) as error:
        result.reason = str(error)
    finally:
        if worker is not None:
            worker.stop()
        ledger.close()
    result.seconds = round(time.monotonic() - started, 3)
    return outcome


def _is_complete(
    examination: Examination,
    result: OperationResult,
    settings: Settings,
    steps: list[tuple[str, Batch]],
    corpus: list[Sourced],
) -> bool:
    """Whether the examination came to its end; the result gets its verdict, or why it has none."""
    try:
        _examine(examination, settings, steps, corpus)
    except KeyboardInterrupt:
        result.reason = f"interrupted after {examination.cases} cases"
    except TooDeadly:
        result.verdict = "FAIL" if examination.failed else "UNVERIFIED"
        result.reason = f"stopped: the candidate died {examination.worker.deaths} times"
    except InvalidCaseError as error:
        result.reason = f"the harness failed on {error}"
    except DeviationError as error:
        result.reason = str(error)
    else:
        passed: Verdict = "DEVIATES" if examination.occurred else "PASS"
        result.verdict = "FAIL" if examination.failed else passed
        return True
    return False


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
            for name, case in operation.inputs.large():
                _try(examination, Sourced(case, "boundary", name))
    memory = _Memory(examination, settings.examples_db)
    for sourced in memory.cases():
        _try(examination, sourced)
    deadline = time.monotonic() + settings.seconds
    for more in range(1, 1_000_000):
        if time.monotonic() >= deadline:
            break
        fuzz(examination, settings.examples, first_seed + 1000 * more)
    if settings.minimise_known:
        for sourced in examination.minimise_known():
            _try(examination, sourced)
    examination.repeat_in_fresh_process()
    memory.keep()


def _explicit(
    operation: Operation, device: str, steps: list[tuple[str, Batch]], corpus: list[Sourced]
) -> Iterator[Sourced]:
    faults = operation.inputs.faults_on(device)
    faults_left = dict.fromkeys(faults, 2)
    for name, case in operation.inputs.boundaries():
        yield Sourced(case, "boundary", name)
        for fault in [fault for fault, left in faults_left.items() if left]:
            if faults[fault].applies(case):
                faults_left[fault] -= 1
                spoilt = msgspec.structs.replace(case, fault=fault)
                yield Sourced(spoilt, "boundary", f"{name}: {fault}")
    for source, batch in steps:
        for case in operation.inputs.from_batch(batch):
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
    result.known = len(examination.known)
    result.origins = {str(origin): count for origin, count in examination.origins.items()}
    for name, checks in zip(ORACLES, examination.checks, strict=True):
        failed = examination.failures_by_oracle.get(name, 0)
        known = examination.known_by_oracle.get(name, 0)
        lived = examination.cases if name == "process" else checks
        # No check at all: the operation has nothing for that oracle, such as tensors.
        if lived or failed or known or result.verdict == "UNVERIFIED":
            result.oracles[name] = OracleCount(checks=lived, failed=failed, known=known)
