"""Hypothesis draws the cases and shrinks what fails; each root cause is shrunk on its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure, Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test

from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.task.examination import Examination, Root
from attnproof.harness.running.task.shrink import SHRINK_SECONDS

_ROUNDS = 6
"""Passes over the strategy: each one after the first looks past what is known to fail."""
_SHRINK_CALLS = 2000
_SHRINK_DEATHS = 25
"""Calls and worker deaths that shrinking may cost, per pass."""
_STEPS = 25
"""Most steps of a sequence."""
_STEPS_FOR_A_CASE = 2
"""As many sequences are drawn as would be cases, divided by this: a sequence costs more."""
_FAULTY = 8
"""One case in so many is malformed."""


class Discovery(Exception):  # noqa: N818 - it is news, not an error
    """A case that fails; each root cause gets a subclass, which Hypothesis keeps apart."""

    def __init__(self, failure: Failure, sourced: Sourced) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.sourced = sourced


def strategy(operation: Operation, device: str = "cpu") -> st.SearchStrategy[Case]:
    """Cases of the operation, one in eight of them malformed where it can be."""

    good, lot = operation.inputs.cases(), st.integers(0, _FAULTY - 1)
    faults = operation.inputs.faults_on(device)

    @st.composite
    def draw_case(draw: st.DrawFn) -> Case:
        case = draw(good)
        if draw(lot) < _FAULTY - 1:
            return case
        names = [name for name, fault in faults.items() if fault.applies(case)]
        if not names:
            return case
        return msgspec.structs.replace(case, fault=draw(st.sampled_from(names)))

    return draw_case()


def get_ready() -> None:
    """Draw once before the tasks are forked.

    Hypothesis collects constants from our source at its first draw, 0.2 s that each task
    would spend.
    """

    @settings(max_examples=1, database=None, verbosity=Verbosity.quiet)
    @given(st.integers())
    def draw(_number: int) -> None:
        pass

    draw()


def fuzz(examination: Examination, examples: int, run_seed: int) -> None:
    """Draw `examples` cases; record each root cause with its smallest case."""
    for round_number in range(_ROUNDS):
        discoveries = _one_pass(examination, examples, run_seed + round_number)
        for discovery, first in discoveries:
            # Hypothesis can stall where a draw depends on an earlier one.
            failure, smallest = examination.minimise(discovery.failure, discovery.sourced)
            examination.record(failure, smallest, first)
        if not discoveries:
            return


def _one_pass(
    examination: Examination, examples: int, run_seed: int
) -> list[tuple[Discovery, Sourced]]:
    kinds: dict[Root, type[Discovery]] = {}
    firsts: dict[Root, Sourced] = {}
    budget = {
        "calls": _SHRINK_CALLS,
        "deaths": examination.worker.deaths + _SHRINK_DEATHS,
        "end": float("inf"),
    }

    def body(case: Case) -> None:
        sourced = Sourced(case, "fuzz")
        if firsts:
            budget["calls"] -= 1
            if _spent(examination, budget) and not examination.has_judged(case):
                return
        failures = examination.check(sourced)
        failure = examination.news(failures)
        if failure is None:
            return
        root = failure.root
        if not firsts:
            budget["end"] = time.monotonic() + SHRINK_SECONDS
        firsts.setdefault(root, sourced)
        kind = kinds.setdefault(root, type("Discovery", (Discovery,), {}))
        raise kind(failure, sourced)

    discoveries = _explore(body, examination, examples, run_seed)
    return [(news, firsts[news.failure.root]) for news in discoveries]


def _spent(examination: Examination, budget: dict[str, float]) -> bool:
    deaths, now = examination.worker.deaths, time.monotonic()
    return budget["calls"] <= 0 or deaths >= budget["deaths"] or now > budget["end"]


def _explore(
    body: Callable[[Case], None], examination: Examination, examples: int, run_seed: int
) -> list[Discovery]:
    try:
        _drawn(body, examination, examples, run_seed)()
    except Discovery as news:
        return [news]
    except FlakyFailure as flaky:
        return _discoveries(flaky)
    except ExceptionGroup as group:
        return _discoveries(group)
    except Unsatisfiable:
        return []
    return []


def _drawn(
    body: Callable[[Case], None], examination: Examination, examples: int, run_seed: int
) -> Callable[[], None]:
    """The body as a Hypothesis test: of drawn cases, or of a state machine's sequences."""
    operation = examination.operation
    machine = operation.inputs.machine
    how = settings(
        max_examples=max(1, examples // _STEPS_FOR_A_CASE) if machine else examples,
        stateful_step_count=_STEPS,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=True,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    if machine is None:
        return seed(run_seed)(how(given(strategy(operation, examination.candidate.device))(body)))
    bound = seed(run_seed)(type(machine.__name__, (machine,), {"judge": staticmethod(body)}))
    return partial(run_state_machine_as_test, bound, settings=how)


def _discoveries(group: BaseExceptionGroup[BaseException]) -> list[Discovery]:
    found: list[Discovery] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(_discoveries(error))
        elif isinstance(error, Discovery):
            found.append(error)
        else:
            raise error  # the harness's own, which no finding may hide
    return found
