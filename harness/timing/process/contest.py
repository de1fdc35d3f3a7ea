"""The work of the timing process: load the candidates once, time each entry."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from attnproof.harness.model.call import Thunk
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.candidates import enter_lane, load, offered_by
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.timing.plan.entries import (
    Entry,
    FailureKind,
    Measured,
    Request,
    Sample,
    StepEntry,
    TimingFailure,
)
from attnproof.harness.timing.process import control
from attnproof.harness.timing.process.binding import is_single_use
from attnproof.harness.timing.process.counters import count
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.process.steady import steady

_FEWEST_ROUNDS = 4


class Contest:
    """All candidates of one lane, loaded in this process."""

    def __init__(self, candidates: Sequence[Candidate], entries: Sequence[Entry | StepEntry]):
        self._candidates = candidates
        self._entries = entries
        self._modules: dict[str, Any] = {}

    def answer(self, request: Request) -> Measured:
        """Time the candidates on the entry; those that raise are failures."""
        if not self._modules:
            self._load()
        entry = self._entries[request.index]
        ready, failures = [], {}
        for name in request.names:
            try:
                contestant = self._contestant(entry, name)
                contestant.make()()
                ready.append(contestant)
            except Exception as error:  # a candidate may raise anything
                failures[name] = _raised(error)
        counted = isinstance(entry, Entry) and not request.itself
        groups = [ready]
        samples, together = [], True
        while groups:
            group = groups.pop()
            try:
                samples += self._timed(group, request, counted=counted)
            except InfrastructureError:
                raise
            except Exception as error:
                if len(group) == 1:
                    failures[group[0].name] = _raised(error)
                else:  # unknown which one raised: time each alone
                    groups += [[one] for one in group]
                    together = False
        with steady():
            gc.freeze()  # later collections skip all objects that exist by now
            return Measured(samples, failures, control.sample(), together)

    def _timed(self, ready: list[Contestant], request: Request, *, counted: bool) -> list[Sample]:
        lane = self._candidates[0].lane
        if request.itself:
            ready = [one for one in ready[:1] for _ in range(2)]
        if not ready:
            return []
        budget = _budget(ready, *request.budget)
        costs = [count(one.make, lane) if counted else None for one in ready]
        with steady():
            taken = measure(ready, budget, lane)
        return [
            Sample(one.name, found.calls, found.host_ns, found.device_ns, cost)
            for one, found, cost in zip(ready, taken, costs, strict=True)
        ]

    def _load(self) -> None:
        import torch

        torch.set_num_threads(1)
        enter_lane(self._candidates[0])
        for candidate in self._candidates:
            try:
                self._modules[candidate.name] = load(candidate)
            except BaseException as error:  # an import may raise anything
                reason = f"{type(error).__name__}: {error}"[:300]
                raise InfrastructureError(
                    f"candidate {candidate.name} cannot be imported where it is timed: {reason}"
                ) from None

    def _contestant(self, entry: Entry | StepEntry, name: str) -> Contestant:
        if isinstance(entry, Entry):
            make, single_use = self._call(entry.operation, entry.case, name)
            return Contestant(name, make, single_use)
        calls = [self._call(operation, case, name) for operation, case in entry.cases]
        kept = [make() if not single_use else None for make, single_use in calls]

        def make_step() -> Thunk:
            thunks = [
                make() if thunk is None else thunk
                for thunk, (make, _) in zip(kept, calls, strict=True)
            ]

            def step() -> None:
                for thunk in thunks:
                    thunk()

            return step

        return Contestant(name, make_step, any(single_use for _, single_use in calls))

    def _call(
        self, operation: Operation, case: Case, name: str
    ) -> tuple[Callable[[], Thunk], bool]:
        """Return a maker of calls of the operation, and True if each call runs only once."""
        offered = offered_by(self._modules[name], operation)
        device = self._candidates[0].device
        operation.built_in.load()

        def make() -> Thunk:
            return operation.call.bind(offered, operation.call.prepare(case, 0, device))

        return make, is_single_use(operation, offered, operation.call.prepare(case, 0, device))


def _budget(ready: list[Contestant], seconds: float, least: int, most: int) -> Budget:
    """Return the budget, with fewer rounds than `least` if rounds are too slow for it."""
    # Twice each, as `measure` calls each contestant once untimed before every sample.
    thunks = [one.make() for one in ready for _ in range(2)]
    begin = time.perf_counter()
    for thunk in thunks:
        thunk()
    affordable = int(seconds / max(1e-9, time.perf_counter() - begin))
    return Budget(
        seconds=seconds,
        least_rounds=min(least, max(_FEWEST_ROUNDS, affordable)),
        most_rounds=most,
    )


def _raised(error: Exception) -> TimingFailure:
    text = f"raised {type(error).__name__} while it was timed: {error}"[:200]
    return TimingFailure(FailureKind.RAISED, text)
