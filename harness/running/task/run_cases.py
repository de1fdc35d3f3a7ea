"""The cases of an examination, in their order."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile

from attnproof.harness.cases.variation.altered_calls import has_fault
from attnproof.harness.model.case import EngineStep, Sourced
from attnproof.harness.model.fault import Fault
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.loading import faults_for
from attnproof.harness.running.task.confirming import minimise_and_record
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.explicit_cases import cases_of_steps, explicit_cases
from attnproof.harness.running.task.fresh_process import repeat_in_fresh_process
from attnproof.harness.running.task.further_calls import CASES_PER_FURTHER, make_further_calls
from attnproof.harness.running.task.fuzz import fuzz
from attnproof.harness.running.task.minimising import minimise_known
from attnproof.harness.running.task.more_cases import (
    altered,
    ids_of_large,
    is_interpreted_soon,
    more_cases,
)
from attnproof.harness.running.task.real_cases import real_cases
from attnproof.harness.running.task.saved_failures import SavedFailures
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.workers import InvalidCaseError

_MOST_PASSES = 1_000_000


@counted(Phase.DRAW)
def run_cases(
    examination: Examination,
    settings: Settings,
    steps: list[EngineStep],
    corpus: list[Sourced],
) -> None:
    """Judge the drawn cases, then boundaries, engine steps, the corpus and all further cases.

    One edge case stands for all of them if no call fits the candidate's signature.
    Raise KeyboardInterrupt, CandidateUnloadableError, TooManyDeaths, InvalidCaseError,
    DeviationError, InfrastructureError.
    """
    operation = examination.operation
    if operation.name in examination.worker.misfits and _fails_first(examination):
        return
    saved = SavedFailures(examination, settings.examples_db)
    first_seed = zlib.crc32(f"{settings.seed}/{operation.name}".encode())
    examples = -(-settings.examples // examination.costly_share)
    drawn = fuzz(examination, examples, first_seed)
    few = settings.examples < Settings().examples and settings.costly_share > 1
    interpreted = examination.candidate.lane == "interpreter"
    left_out = ids_of_large(operation) if few and interpreted else set()
    boundaries = settings.boundaries
    faults = examination.early_faults
    kept = _runnable(examination, corpus, faults)
    explicit = explicit_cases(
        operation,
        faults,
        steps,
        kept,
        left_out,
        with_boundaries=boundaries,
        few=settings.sparse or (few and examination.costly_share > 1),
    )
    _judge_all(examination, explicit)
    if faults and boundaries and settings.vary:
        _run_altered(examination, examples)
    if settings.vary:
        real = [sourced.case for sourced in cases_of_steps(operation, steps)]
        tested = examination.counts.tested_cells
        varied = more_cases(operation, drawn, examples, first_seed, real, tested)
        _run_varied(examination, varied)
    if examination.candidate.device != "cpu" and boundaries:
        _run_large(examination)
    _judge_all(examination, real_cases(examination))
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
        for sourced in minimise_known(examination):
            _judge(examination, sourced)
    make_further_calls(examination, examples or CASES_PER_FURTHER * len(remembered))
    repeat_in_fresh_process(examination)
    if not examination.early_faults:
        others = [*corpus, *remembered]
        _run_malformed(examination, settings, others, examples)


def _fails_first(examination: Examination) -> bool:
    """True if the candidate fails the first edge case that an engine makes, which is recorded."""
    operation = examination.operation
    for name, case in operation.inputs.boundaries():
        if not operation.why_unreal(case):
            sourced = examination.in_interface(Sourced(case, "boundary", name))
            for failure in examination.check(sourced)[:1]:
                examination.record(failure, sourced, sourced)
                return True
            break
    return False


def _run_large(examination: Examination) -> None:
    """Judge the cases of real size, which only a GPU computes in reasonable time."""
    large = examination.operation.inputs.large()
    _judge_all(examination, (Sourced(case, "boundary", name) for name, case in large))


def _run_varied(examination: Examination, varied: Iterable[Sourced]) -> None:
    """Judge the cases that the reference accepts, in the interpreter only small ones."""
    interpreted = examination.candidate.lane == "interpreter"
    soon = (
        sourced
        for sourced in varied
        if not interpreted or is_interpreted_soon(examination.operation, sourced.case)
    )
    for sourced in examination.one_ahead(soon):
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
    limit = examination.worker.timeout_s
    _judge_all(examination, cases)
    if boundaries and settings.vary:
        _run_altered(examination, examples)
    examination.worker.timeout_s = limit  # a hang on malformed input limits no good input
    if cases:
        examination.worker.restart_warm()


def _runnable(
    examination: Examination, corpus: list[Sourced], faults: Mapping[str, Fault]
) -> list[Sourced]:
    """Return the operation's cases of a corpus; malformed ones only if there are faults to run."""
    operation, device = examination.operation, examination.candidate.device
    own = [sourced for sourced in corpus if sourced.case.operation == operation.name]
    return [
        sourced
        for sourced in own
        if not sourced.case.fault or (faults and has_fault(operation, sourced.case.fault, device))
    ]


def _run_altered(examination: Examination, examples: int) -> None:
    """Judge altered values, as long as the candidate refuses all malformed input."""
    cases = altered(examination.operation, examination.candidate, examples)
    _judge_all(examination, takewhile(lambda _: not examination.accepts_malformed, cases))


def _judge_all(examination: Examination, cases: Iterable[Sourced]) -> None:
    """Judge cases that Hypothesis did not draw, each while the candidate runs the next."""
    for sourced in examination.one_ahead(cases):
        _judge(examination, sourced)


def _judge(examination: Examination, sourced: Sourced) -> None:
    """Judge one case that Hypothesis did not draw; shrink a new root cause at once."""
    sourced = examination.in_interface(sourced)
    unexplained = examination.roots.new_failure(examination.check(sourced))
    if unexplained is not None:
        minimise_and_record(examination, unexplained, sourced, sourced)


def _judge_rest(examination: Examination, sourced: Sourced) -> None:
    """Shrink the other root causes of a remembered case, which may be as large as it was found."""
    while (more := examination.roots.new_failure(examination.check(sourced))) is not None:
        minimise_and_record(examination, more, sourced, sourced)
