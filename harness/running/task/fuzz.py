"""Fuzzing: Hypothesis draws cases and shrinks failing ones, each root cause separately."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture.providers import HypothesisProvider

from attnproof.harness.backports import BaseExceptionGroup
from attnproof.harness.cases.machine import sequence_test
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.confirming import minimise_and_record
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.root_causes import Root
from attnproof.harness.running.task.shrink import is_emptier

BATCH = 9
"""Cases that one run of Hypothesis draws, with a seed of its own.

Of ten cases or more the first tenth is small, and after the first eleven five in six repeat a
part of the one before: many short runs give cases that are independent of each other.
"""
_ROUNDS = 6
"""Passes over a batch that may find root causes: a pass ignores those of earlier passes."""
_SHRINK_CALLS, _SHRINK_SEQUENCES, _SHRINK_DEATHS = 2000, 100, 25
"""Limits on the calls, those of sequences, and the worker deaths of shrinking in one pass."""
_MOST_STEPS = 25
"""Maximal number of steps of a sequence."""
_CASES_PER_SEQUENCE = 2
"""Number of examples that one sequence counts as: it costs more than a case."""
_MOST_DRAWS = 2
"""Draws for each example until all cases are different."""
_MALFORMED_SHARE = 8
"""One drawn case in this many is malformed."""


class Discovery(Exception):  # noqa: N818 - not an error of the harness
    """A failing case; each root cause gets a subclass, which Hypothesis shrinks separately."""

    def __init__(self, failure: Failure, sourced: Sourced) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.sourced = sourced


class _Spent(BaseException):
    """A limit of shrinking is reached; Hypothesis would take another exception for a failure."""


def strategy(operation: Operation, faults: Mapping[str, Fault]) -> st.SearchStrategy[Case]:
    """Return the strategy for the operation's cases, some malformed by one of the faults."""
    good, turn = operation.inputs.cases(), st.integers(0, _MALFORMED_SHARE - 1)

    @st.composite
    def draw_case(draw: st.DrawFn) -> Case:
        case = draw(good)
        if draw(turn) < _MALFORMED_SHARE - 1:
            return case
        names = [name for name, fault in faults.items() if fault.applies(case)]
        if not names:
            return case
        return msgspec.structs.replace(case, fault=draw(st.sampled_from(names)))

    return draw_case()


class _NoConstants:
    def set_for_type(self, _kind: str) -> tuple[()]:
        return ()


@contextmanager
def without_local_constants() -> Iterator[None]:
    """Let Hypothesis draw the same numbers wherever attnproof is installed, inside the block.

    It draws one integer in twenty among constants of the source code, which it collects from
    editable installations only: in 0.4 s, and in the current folder.
    """
    name = "_local_constants"
    kept = vars(HypothesisProvider).get(name, _NoConstants())
    setattr(HypothesisProvider, name, _NoConstants())
    try:
        yield
    finally:
        setattr(HypothesisProvider, name, kept)


def fuzz(examination: Examination, examples: int, run_seed: int) -> list[Case]:
    """Draw `examples` different cases; record the smallest case of each root cause.

    Returns the drawn cases that are well-formed. Fewer are drawn if other ones are rare.
    """
    drawn: list[Case] = []
    ids: set[str] = set()
    rounds = 0
    cost = _CASES_PER_SEQUENCE if examination.is_sequence else 1
    wanted = -(-examples // cost)
    for first in range(0, _MOST_DRAWS * examples, BATCH):
        if len(ids) >= wanted:
            break
        # The simplest case comes first in every batch.
        count = min(BATCH // cost, wanted - len(ids) + bool(ids))
        while True:
            batch_seed = zlib.crc32(f"{run_seed}/{first}/{rounds}".encode())
            if not _fails(examination, count, batch_seed, drawn, ids):
                break
            _find_causes(examination, count, batch_seed)
            rounds += 1
            if rounds == _ROUNDS:
                return drawn
    return drawn


def _fails(
    examination: Examination, examples: int, run_seed: int, drawn: list[Case], ids: set[str]
) -> bool:
    """Draw `examples` cases, then judge them up to the first new root cause, True if there is one.

    The well-formed cases that were judged are added to `drawn`, and the ids of all to `ids`.
    """
    cases: list[Sourced] = []
    _explore(lambda case: cases.append(Sourced(case, "fuzz")), examination, examples, run_seed)
    for sourced in examination.one_ahead(cases):
        ids.add(sourced.case.id)
        if not sourced.case.fault:
            drawn.append(sourced.case)
        if examination.roots.new_failure(examination.check(sourced)) is not None:
            return True
    return False


def _find_causes(examination: Examination, examples: int, run_seed: int) -> None:
    """Draw cases that fail again; shrink and record their root causes."""
    latest: dict[Root, tuple[Discovery, Sourced]] = {}
    try:
        discoveries = _one_pass(examination, examples, run_seed, latest)
        for discovery, first in discoveries:
            if not examination.is_new(discovery.failure, discovery.sourced):
                continue  # shrunk to a case of another one: a further pass finds it alone
            # Hypothesis may stop early where a draw depends on an earlier one.
            minimise_and_record(examination, discovery.failure, discovery.sourced, first)
    except BaseException:  # such as an interrupt: what was found so far is kept
        for discovery, first in latest.values():
            examination.record(discovery.failure, discovery.sourced, first)
        raise


def _one_pass(
    examination: Examination,
    examples: int,
    run_seed: int,
    latest: dict[Root, tuple[Discovery, Sourced]],
) -> list[tuple[Discovery, Sourced]]:
    """Return the discoveries with their first cases; add each to `latest` at once."""
    kinds: dict[Root, type[Discovery]] = {}
    stopped: list[InfrastructureError] = []
    firsts: dict[Root, Sourced] = {}
    budget = {
        "calls": _SHRINK_SEQUENCES if examination.is_sequence else _SHRINK_CALLS,
        "deaths": examination.worker.deaths + _SHRINK_DEATHS,
        "end": float("inf"),
    }

    def body(case: Case) -> None:
        sourced = examination.in_interface(Sourced(case, "fuzz"))
        case = sourced.case
        if stopped:
            return
        if firsts:
            budget["calls"] -= 1
            if _spent(examination, budget):
                raise _Spent
        try:
            failures = examination.check(sourced, shrinking=bool(firsts))
        except InfrastructureError as error:  # Hypothesis would take it for a failing case
            stopped.append(error)
            return
        failure = examination.roots.new_failure(failures)
        if failure is None:
            return
        root = failure.root
        if root in firsts and is_emptier(case, firsts[root].case):
            return
        if not firsts:
            budget["end"] = time.monotonic() + examination.certainty.shrink_seconds(failure)
        firsts.setdefault(root, sourced)
        kind = kinds.setdefault(root, type("Discovery", (Discovery,), {}))
        discovery = kind(failure, sourced)
        if root not in latest or _size(case) <= _size(latest[root][0].sourced.case):
            latest[root] = discovery, firsts[root]
        raise discovery

    try:
        discoveries = _explore(body, examination, examples, run_seed)
    except _Spent:
        discoveries = [discovery for discovery, _ in latest.values()]
    if stopped:
        raise stopped[0]
    return [(each, firsts[each.failure.root]) for each in discoveries]


def _spent(examination: Examination, budget: dict[str, float]) -> bool:
    deaths, now = examination.worker.deaths, time.monotonic()
    return budget["calls"] <= 0 or deaths >= budget["deaths"] or now > budget["end"]


def _size(case: Case) -> tuple[int, int]:
    return case.num_steps, case.num_requests + case.num_tokens


def _explore(
    body: Callable[[Case], None], examination: Examination, examples: int, run_seed: int
) -> list[Discovery]:
    try:
        with without_local_constants():
            _drawn(body, examination, examples, run_seed)()
    except Discovery as discovery:
        return [discovery]
    except BaseExceptionGroup as group:  # of an interrupt too, which `_discoveries` raises
        return _discoveries(group)
    except Unsatisfiable:
        return []
    return []


def _drawn(
    body: Callable[[Case], None], examination: Examination, examples: int, run_seed: int
) -> Callable[[], None]:
    """Return `body` as a Hypothesis test: of drawn cases, or of a state machine's sequences."""
    operation = examination.operation
    machine = operation.inputs.machine
    how = settings(
        max_examples=examples,
        stateful_step_count=_MOST_STEPS,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=True,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    if machine is None:
        drawn = strategy(operation, examination.early_faults)
        test = seed(run_seed)(how(given(drawn)(body)))
        # The key of its database, which it does not have: a hash of the source takes 6 ms.
        vars(test)["_hypothesis_internal_database_key"] = b""
        return test
    return sequence_test(machine, body, run_seed, how)


def _discoveries(group: BaseExceptionGroup[BaseException]) -> list[Discovery]:
    discoveries: list[Discovery] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            discoveries.extend(_discoveries(error))
        elif isinstance(error, Discovery):
            discoveries.append(error)
        else:
            raise error  # an interrupt or an error of the harness, which findings must not hide
    return discoveries
