"""Judge a mutant by cases until the first failure."""

from __future__ import annotations

import signal
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Unsatisfiable

from attnproof.harness.cases.machine import sequence_test
from attnproof.harness.cases.variation.change import MOST_SIZE, size_of
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Failure, Verdict
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.loading import faults_for
from attnproof.harness.running.task.explicit_cases import explicit_cases
from attnproof.harness.running.task.further_calls import failures_of_further_calls
from attnproof.harness.running.task.fuzz import BATCH, strategy
from attnproof.harness.running.task.more_cases import (
    altered,
    ids_of_large,
    is_interpreted_soon,
    more_cases,
    options_of,
)
from attnproof.harness.running.task.workers import InvalidCaseError, Worker
from attnproof.harness.strength.mutants import planting
from attnproof.harness.strength.mutants.mutant import Mutant, Result
from attnproof.harness.strength.mutants.reach import Places, Reach

_TARGET = f"{planting.__name__}:backend"
_TIMEOUT_S, _TIMEOUT_INTERPRETED_S = 5.0, 20.0
"""Time limits of a case, in seconds: a mutant that needs longer has timed out."""
_LIMIT_FACTOR = 6
"""Time limit of the judging process, as a multiple of a case's: it calls mutants of the reference
itself."""
_DRAWN_PER_INTERPRETED = 8
"""Drawn cases for each one that Triton's interpreter gets."""
_MEMORY_BYTES = 4 << 30
_FEWEST = 20
"""Number of cases of an operation that are judged in any case."""
_REPEATED_SHARE = 10
"""One case in this many is called twice on equal input."""
_LONGEST_SEQUENCE = 25
_FURTHER = 20
"""Maximum number of cases that are followed by calls on other input."""


def draw(operation: Operation, candidate: Candidate, examples: int, run_seed: int) -> list[Case]:
    """Return the cases of a run of `verify`, without calling a candidate.

    Edge cases and malformed ones come first, then those of critical sizes, then `examples` drawn
    ones.
    """
    faults, interpreted = faults_for(operation, candidate), candidate.lane == "interpreter"
    if interpreted:
        examples = -(-examples // _DRAWN_PER_INTERPRETED)
    explicit = [sourced.case for sourced in explicit_cases(operation, faults, [], [])]
    explicit += [sourced.case for sourced in altered(operation, candidate, examples)]
    drawn: list[Case] = []
    for first in range(0, examples, BATCH):
        batch_seed = zlib.crc32(f"{run_seed}/{first}".encode())
        drawn += draw_only(operation, faults, min(BATCH, examples - first), batch_seed)
    good = [case for case in drawn if not case.fault]
    more = more_cases(operation, good, examples, run_seed, [], lambda: ())
    # Compiled loops run as Python here, where a large case takes a second.
    small = [sourced.case for sourced in more if size_of(sourced.case) <= MOST_SIZE]
    cases = [*explicit, *small, *drawn]
    if interpreted:
        many = ids_of_large(operation)
        cases = [case for case in cases if case.id not in many]
        cases = [case for case in cases if case.fault or is_interpreted_soon(operation, case)]
    return list({case.id: case for case in cases}.values())


def draw_only(
    operation: Operation, faults: Mapping[str, Fault], examples: int, run_seed: int
) -> list[Case]:
    """Return cases that Hypothesis draws, some malformed by one of the faults."""
    drawn: list[Case] = []

    def keep(case: Case) -> None:
        drawn.append(case)

    how = settings(
        max_examples=examples,
        stateful_step_count=_LONGEST_SEQUENCE,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    machine = operation.inputs.machine
    run: Callable[[], Any]
    if machine is None:
        run = seed(run_seed)(how(given(strategy(operation, faults))(keep)))
    else:
        run = sequence_test(machine, keep, run_seed, how)
    with suppress(Unsatisfiable):
        run()
    return drawn


class Prepared(NamedTuple):
    """The cases of an operation that the candidate passes, and the lines that they run."""

    # An unpickled case has another id.
    cases: list[bytes]
    """Encoded cases of a run of `verify`, those that run other lines than the ones before first."""
    deep: list[bytes]
    """Encoded drawn cases of another seed."""
    places: dict[str, Places]
    """Lines that a case runs, by its id."""
    failed: int
    """Number of cases that the candidate fails without a mutant."""
    case_s: float
    """Mean time of a case in seconds."""
    accepted: int
    """Number of valid cases that end without a failure, advice included."""


def prepare(
    operation: str,
    module: Any,
    candidate: Candidate,
    reach: Reach,
    examples: int,
    deep: int,
    run_seed: int,
) -> Prepared:
    """Draw the cases of an operation, and judge them without a mutant."""
    cases = draw(ALL[operation], candidate, examples, run_seed)
    further = draw(ALL[operation], candidate, deep, run_seed + 1) if deep else []
    seconds: dict[str, float] = {}
    places: dict[str, Places] = {}
    accepted = 0
    worker = _worker(reach.recorded(ALL[operation]), module, candidate)
    try:
        cases = list({case.id: case for case in map(worker.in_interface, cases)}.values())
        further = list(map(worker.in_interface, further))
        known = {case.id for case in cases}
        for case in [*cases, *(extra for extra in further if extra.id not in known)]:
            started = time.monotonic()
            reach.take()
            try:
                verdict = worker.judge(case, repeated=False)
            except InvalidCaseError:  # `verify` leaves it out too
                continue
            accepted += not case.fault and not verdict.failures
            if not any(failure.kind in candidate.judged for failure in verdict.failures):
                seconds[case.id], places[case.id] = time.monotonic() - started, reach.take()
    finally:
        worker.stop()
    passing = _most_different_first([case for case in cases if case.id in places], places, seconds)
    return Prepared(
        [encode(case) for case in passing],
        [encode(case) for case in further if case.id in places and case.id not in known],
        places,
        len(cases) - len(passing),
        sum(seconds.values()) / max(1, len(seconds)),
        accepted,
    )


def _most_different_first(
    cases: list[Case], places: dict[str, Places], seconds: dict[str, float]
) -> list[Case]:
    """Return the cases in rounds of one case for each kind, the fastest first.

    A kind is a set of lines with one fault, or one value of an option in a valid case.
    """
    turns: dict[tuple[object, ...], int] = {}
    ranks: dict[str, tuple[int, float]] = {}
    for case in sorted(cases, key=lambda case: seconds[case.id]):
        # Altered values are one kind, as their numbers say nothing.
        kinds: list[tuple[object, ...]] = [
            (places[case.id].tobytes(), case.fault.rstrip("0123456789")),
            *(options_of(case) if not case.fault else ()),
        ]
        ranks[case.id] = min(turns.get(kind, 0) for kind in kinds), seconds[case.id]
        turns |= {kind: turns.get(kind, 0) + 1 for kind in kinds}
    return sorted(cases, key=lambda case: ranks[case.id])


class _TimeIsOver(BaseException):
    """The judging process takes too long; no handler of an `Exception` swallows it."""


class Round(NamedTuple):
    """The cases of one operation that run the changed statement of a mutant."""

    operation: str
    cases: list[Case]
    deep: list[Case]
    """Cases for a mutant that survives the others."""


def judge(
    mutant: Mutant, module: Any, candidate: Candidate, budget_s: float, rounds: list[Round]
) -> Result:
    """Plant the mutant in this process and judge the cases of each round until one fails.

    The operations share `budget_s` seconds. No case is begun after an operation's share, except its
    first ones: its process may take longer to start than its share.
    """
    started = time.monotonic()
    result = Result(mutant, rounds[0].operation, "survived", reason="no case runs the line")
    cases = 0
    try:
        planting.plant(mutant)
    except planting.NotPlantedError as error:
        return msgspec.structs.replace(result, fate="not planted", reason=str(error))
    rounds = [r for r in rounds if r.cases or r.deep]
    for number, round_ in enumerate(rounds):
        now = time.monotonic()
        until = now + (started + budget_s - now) / (len(rounds) - number)
        survivor = Result(mutant, round_.operation, "survived")
        result = _judged(survivor, module, candidate, round_, until)
        cases += result.cases
        if result.fate != "survived":
            break
    seconds = round(time.monotonic() - started, 2)
    return msgspec.structs.replace(result, cases=cases, seconds=seconds)


def _judged(base: Result, module: Any, candidate: Candidate, round_: Round, until: float) -> Result:
    """Judge the cases of one operation in a process with the mutant, up to a time.

    A mutant that survives them stays a survivor; its reason says what the cases `deep` show.
    """
    changed = partial(msgspec.structs.replace, base)
    count, cases = 0, round_.cases
    share = 1 if base.mutant.operator == "default" else _REPEATED_SHARE
    try:
        worker = _worker(ALL[round_.operation], module, candidate)
    except InfrastructureError as error:
        return changed(fate="killed", oracle="process", reason=str(error))
    try:
        for count, case in enumerate([*cases, *round_.deep], 1):
            if count > _FEWEST and time.monotonic() > until:
                return changed(cases=count - 1, reason="the time of a mutant is over")
            with _time_limit(candidate):
                verdict: Verdict = worker.judge(case, repeated=count % share == 0)
            failures = [failure for failure in verdict.failures if failure.kind in candidate.judged]
            if failures and count > len(cases):
                text = f"{failures[0].oracle} finds it in further case {count - len(cases)}"
                return changed(cases=len(cases), reason=text)
            if failures:
                hangs = failures[0].oracle == "process" and "hang" in failures[0].diagnosis
                fate = "timed out" if hangs else "killed"
                return changed(fate=fate, oracle=failures[0].oracle, cases=count, case=case.id)
        count = len(cases)
        failures = _failures_of_further_calls(worker, cases)
        if failures:
            return changed(fate="killed", oracle=failures[0].oracle, cases=count)
    except _TimeIsOver:
        if count > len(cases):
            return changed(cases=len(cases), reason="a further case does not end")
        return changed(fate="timed out", oracle="harness", cases=count)
    except InfrastructureError as error:  # the reference itself fails, or the case is not laid out
        return changed(fate="killed", oracle="harness", cases=count, reason=str(error))
    finally:
        worker.stop()
    reason = f"no finding in {len(round_.deep)} further cases" if round_.deep else ""
    return changed(cases=len(cases), reason=reason)


@contextmanager
def _time_limit(candidate: Candidate) -> Iterator[None]:
    """Raise `_TimeIsOver` in this process if a case takes many times its limit."""

    def stop(_signal: int, _frame: object) -> None:
        raise _TimeIsOver

    seconds = _LIMIT_FACTOR * _timeout_of(candidate)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _timeout_of(candidate: Candidate) -> float:
    """Return the time limit of a case, in seconds."""
    return _TIMEOUT_INTERPRETED_S if candidate.lane == "interpreter" else _TIMEOUT_S


def _failures_of_further_calls(worker: Worker, cases: list[Case]) -> list[Failure]:
    """Return the failures of calls on other input after some of the cases, up to the first."""
    good = [case for case in cases if not case.fault]
    wrong: list[Case] = []
    for case in good[:: len(good) // _FURTHER + 1]:
        with _time_limit(worker.candidate):
            observed = failures_of_further_calls(worker, case, wrong, at_once=False)
        observed = observed or tuple(f for case in wrong for f in worker.judge(case).failures)
        failures = [failure for failure in observed if failure.kind in worker.candidate.judged]
        if failures:
            return failures
    return []


def _worker(operation: Operation, module: Any, candidate: Candidate) -> Worker:
    planting.backend = module
    planted = Candidate(
        candidate.name,
        _TARGET,
        lane=candidate.lane,
        interface=candidate.interface,
        declared=candidate.declared,
        judged=candidate.judged,
    )
    return Worker(
        planted,
        {operation.name: operation},
        timeout_s=_timeout_of(candidate),
        memory_bytes=_MEMORY_BYTES,
    )
