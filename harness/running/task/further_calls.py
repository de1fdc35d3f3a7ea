"""Accepted cases once more, with calls on other input: later calls, and related batches."""

from __future__ import annotations

from functools import partial

from attnproof.harness.cases.variation.other_values import other_options, other_values
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import ORACLES, Failure, Kind
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import determinism, invariants
from attnproof.harness.oracles.later_calls import DEPENDS
from attnproof.harness.oracles.recompilation import engine_steps
from attnproof.harness.oracles.relations import related_cases
from attnproof.harness.running import interrupt
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.task.certainty import is_death
from attnproof.harness.running.task.confirming import judge_again, minimise_and_record
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.workers import InvalidCaseError, Worker

CASES_PER_FURTHER = 10
"""Drawn cases of a run for each drawn case, and each other one, that is called on other input
afterwards."""
_FEWEST, _FEWEST_SPARSE, _FEWEST_COSTLY = 6, 3, 2
"""Least number of these cases of each origin: the later calls of one may have equal results. Fewer
in a sparse run, and where a case is costly."""
_LATER_CALLS, _OPTIONS = 3, 3
"""Later calls of a case, of which the first is repeated with the same objects, filled anew; and
those objects filled with another option of the case. Where fewer cases are called, one of the
later calls and one of the others are made after each: the cases take turns."""
_AT_ONCE = 3
"""Cases of a run that are called at once with another one."""
_MOST_WRONG = 5
"""Cases of further calls that fail by themselves and are judged like the others."""
_DETERMINISM, _INVARIANTS = (
    list(ORACLES).index(oracle.NAME) for oracle in (determinism, invariants)
)


def make_further_calls(examination: Examination, examples: int) -> None:
    """Make further calls after some accepted cases of each origin; record what they find.

    `examples` is the number of cases that Hypothesis was to draw; few of them, few of these.
    Of sequences only calls at once: all results are compared after each of their steps.
    """
    is_sequence = not examination.operation.call.takes_arguments
    wrong: list[Case] = []
    alone: set[str] = set()
    turns: dict[str, int] = {}

    def judge(case: Case) -> tuple[Failure, ...]:
        # A smaller case, or a repetition, gets all calls: any of them may show the root cause.
        turn = turns.pop(case.id, None)
        at_once = case.id not in alone
        return failures_of_further_calls(examination.worker, case, wrong, turn, at_once=at_once)

    fewest = _FEWEST_SPARSE if examination.settings.sparse else _FEWEST
    if examination.costly_share > 1:
        fewest = _FEWEST_COSTLY
    count = max(fewest, -(-examples // CASES_PER_FURTHER))
    accepted, checks = examination.counts.accepted, examination.counts.checks
    drawn = [sourced for sourced in accepted if sourced.origin == "fuzz"]
    others = [sourced for sourced in accepted if sourced.origin != "fuzz"]
    chosen = [*_spread(drawn, count), *_spread(others, count)]
    if Kind.CONTRACT not in examination.candidate.judged:
        chosen = real_ones(examination.operation, chosen, others)
    if examination.settings.sparse or examination.costly_share > 1:
        turns |= {sourced.case.id: turn for turn, sourced in enumerate(chosen)}
    if is_sequence:
        chosen = _spread(chosen, _AT_ONCE)
    alone |= {sourced.case.id for sourced in chosen} - {
        sourced.case.id for sourced in _spread(chosen, _AT_ONCE)
    }
    for sourced in chosen:
        interrupt.check()
        judge_again(examination, sourced, judge)
        checks[_DETERMINISM] += 1
        checks[_INVARIANTS] += examination.operation.contract.relations is not None
    for case in wrong[:_MOST_WRONG]:
        sourced = Sourced(case, "boundary", "a further call")
        failure = examination.roots.new_failure(examination.check(sourced))
        if failure is not None:
            minimise_and_record(examination, failure, sourced, sourced)


def failures_of_further_calls(
    worker: Worker,
    case: Case,
    wrong: list[Case] | None = None,
    turn: int | None = None,
    *,
    at_once: bool = True,
) -> tuple[Failure, ...]:
    """Return the failures of calls after the case, and of calls on related cases.

    Cases that fail by themselves are left out and added to `wrong`. A `turn`, the number of the
    case in a run, selects some of the calls after the case; None stands for all of them. Without
    `at_once` no two calls are made at once.
    """
    if case.fault:
        return ()
    wrong = [] if wrong is None else wrong
    failures: tuple[Failure, ...] = ()
    if ALL[case.operation].call.takes_arguments:
        failures = (
            _failures_of_later_calls(worker, case, wrong, turn)
            or _failures_of_relations(worker, case, wrong)
            or _failures_of_steps(worker, case)
        )
    return failures or (_failures_at_once(worker, case) if at_once else ())


def _failures_of_later_calls(
    worker: Worker, case: Case, wrong: list[Case], turn: int | None
) -> tuple[Failure, ...]:
    others = other_values(case, problem_of, _LATER_CALLS)
    again = [*others[:1], *other_options(case, problem_of, _OPTIONS)]
    if turn is not None:
        others = others[turn % max(1, len(others)) :][:1]
        again = again[turn % max(1, len(again)) :][:1]
    calls = [*((other, False) for other in others), *((other, True) for other in again)]
    for other, in_place in calls:
        call_after = partial(worker.call_after, in_place=in_place)
        second = worker.in_interface(other)
        try:
            failures = call_after(case, second).failures
            if any(map(is_death, failures)):  # perhaps the machine's
                failures = call_after(case, second).failures
            if failures and failures[0].diagnosis == DEPENDS:
                worker.restart_warm()  # the process may have kept what is wrong
                if worker.judge(second).failures:
                    wrong.append(second)
                    continue
        except InvalidCaseError:  # only cases that the reference accepts are meant
            continue
        if failures:
            return failures
    return ()


def _failures_of_relations(worker: Worker, case: Case, wrong: list[Case]) -> tuple[Failure, ...]:
    related = related_cases(ALL[case.operation], case)
    whole = worker.outputs(case) if related else {}
    for cases, judge in related if whole else ():
        others = [worker.in_interface(other) for other in cases]
        if any(map(problem_of, others)):
            continue
        try:
            outputs = [worker.outputs(other) for other in others]
            failures = tuple(judge(whole, *outputs)) if all(outputs) else ()
            failing = [other for other in others if failures and worker.judge(other).failures]
        except InvalidCaseError:  # only cases that the reference accepts are meant
            continue
        wrong += failing
        if failures and not failing:
            return failures
    return ()


def _failures_of_steps(worker: Worker, case: Case) -> tuple[Failure, ...]:
    """Return the failures of engine steps that compile a kernel, of a candidate that may."""
    if worker.candidate.lane == "cpu":
        return ()
    steps = engine_steps(ALL[case.operation], case, problem_of)
    try:
        return worker.compiles_again(steps) if steps else ()
    except InvalidCaseError:
        return ()


def _failures_at_once(worker: Worker, case: Case) -> tuple[Failure, ...]:
    """Return the failures of two calls at once, of a candidate on the host.

    Triton's interpreter serves one thread.
    """
    if worker.candidate.lane != "cpu" or case.before:
        return ()
    other, *_ = [*other_values(case, problem_of, 1), case]
    try:
        return worker.call_within(case, worker.in_interface(other)).failures
    except InvalidCaseError:
        return ()


def real_ones(operation: Operation, chosen: list[Sourced], cases: list[Sourced]) -> list[Sourced]:
    """Return the chosen cases, in the place of unreal ones others that engines make, if any.

    What an unreal case shows is advice, whatever real ones would show.
    """
    known = {sourced.case.id for sourced in chosen}
    others = (
        other
        for other in cases
        if other.case.id not in known and not operation.why_unreal(other.case)
    )
    return [
        next(others, sourced) if operation.why_unreal(sourced.case) else sourced
        for sourced in chosen
    ]


def _spread(cases: list[Sourced], count: int) -> list[Sourced]:
    """Return `count` of the cases, evenly spread."""
    if len(cases) <= count:
        return cases
    return [cases[index * len(cases) // count] for index in range(count)]
