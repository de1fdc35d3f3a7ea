"""In the process that times: the candidates, loaded once, and the contests between them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation, Thunk
from attnproof.harness.running.candidates import enter_lane, load, offered_by
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.timing.plan.entries import RAISED, Ask, Entry, Measured, Sample, StepEntry
from attnproof.harness.timing.process import control
from attnproof.harness.timing.process.binding import is_spent
from attnproof.harness.timing.process.counters import count
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.process.quiet import quiet

_FEWEST_ROUNDS = 4


class Contest:
    """All candidates of one lane in this process."""

    def __init__(self, candidates: Sequence[Candidate], entries: Sequence[Entry | StepEntry]):
        self._candidates = candidates
        self._entries = entries
        self._modules: dict[str, Any] = {}

    def answer(self, ask: Ask) -> Measured:
        """What the candidates took; the reason for those that cannot be called."""
        if not self._modules:
            self._load()
        entry = self._entries[ask.place]
        ready, wrong = [], {}
        for name in ask.names:
            try:
                contestant = self._contestant(entry, name)
                contestant.make()()
                ready.append(contestant)
            except Exception as error:  # a candidate may raise anything
                wrong[name] = _raised(error)
        counted = isinstance(entry, Entry) and not ask.itself
        groups = [ready]
        samples, together = [], True
        while groups:
            group = groups.pop()
            try:
                samples += self._timed(group, ask, counted=counted)
            except InfrastructureError:
                raise
            except Exception as error:
                if len(group) == 1:
                    wrong[group[0].name] = _raised(error)
                else:  # whoever raises it, the others are timed
                    groups += [[one] for one in group]
                    together = False
        with quiet():
            gc.freeze()  # what lives by now need not be looked through before each entry
            return Measured(samples, wrong, control.sample(), together)

    def _timed(self, ready: list[Contestant], ask: Ask, *, counted: bool) -> list[Sample]:
        lane = self._candidates[0].lane
        if ask.itself:
            ready = [one for one in ready[:1] for _ in range(2)]
        if not ready:
            return []
        budget = _budget(ready, *ask.budget)
        costs = [count(one.make, lane) if counted else None for one in ready]
        with quiet():
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
            make, spent = self._call(entry.operation, entry.case, name)
            return Contestant(name, make, spent)
        calls = [self._call(operation, case, name) for operation, case in entry.cases]
        kept = [make() if not spent else None for make, spent in calls]

        def make_step() -> Thunk:
            thunks = [
                make() if thunk is None else thunk
                for thunk, (make, _) in zip(kept, calls, strict=True)
            ]

            def step() -> None:
                for thunk in thunks:
                    thunk()

            return step

        return Contestant(name, make_step, any(spent for _, spent in calls))

    def _call(
        self, operation: Operation, case: Case, name: str
    ) -> tuple[Callable[[], Thunk], bool]:
        """What makes a call of the operation, and whether each can be made only once."""
        offered = offered_by(self._modules[name], operation)
        device = self._candidates[0].device
        if operation.built_in.load is not None:
            operation.built_in.load()

        def make() -> Thunk:
            return operation.call.bind(offered, operation.call.prepare(case, 0, device))

        return make, is_spent(operation, offered, operation.call.prepare(case, 0, device))


def _budget(ready: list[Contestant], seconds: float, least: int, most: int) -> Budget:
    """With fewer rounds than `least` where a round takes more than its part of the time."""
    thunks = [one.make() for one in ready for _ in range(2)]  # as `measure` does: one is not timed
    begin = time.perf_counter()
    for thunk in thunks:
        thunk()
    affordable = int(seconds / max(1e-9, time.perf_counter() - begin))
    return Budget(
        seconds=seconds,
        least_rounds=min(least, max(_FEWEST_ROUNDS, affordable)),
        most_rounds=most,
    )


def _raised(error: Exception) -> str:
    return f"{RAISED}{type(error).__name__} while it was timed: {error}"[:200]
