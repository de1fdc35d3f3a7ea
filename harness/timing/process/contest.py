"""The work of the timing process: load the candidates once, time each entry."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Sequence
from typing import Any

from attnproof.harness.cases.variation.unseen import unseen
from attnproof.harness.model.call import Call
from attnproof.harness.model.candidate import REFERENCE, Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.timing import Work
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.interface_choice import interface_to_adapt
from attnproof.harness.running.loading import enter_lane, load_to_time, offered_by
from attnproof.harness.timing.plan.entries import (
    Entry,
    FailureKind,
    Measured,
    Request,
    Sample,
    StepEntry,
    TimingFailure,
)
from attnproof.harness.timing.plan.timetable import SERVED
from attnproof.harness.timing.process import control
from attnproof.harness.timing.process.comparison import (
    CandidateCalls,
    Mismatch,
    TimedCall,
    WrongResultError,
    expected_outputs,
)
from attnproof.harness.timing.process.copying import work_of
from attnproof.harness.timing.process.counters import count
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.process.remembering import VALUES, remembering
from attnproof.harness.timing.process.steady import steady

_MOST_TOKENS = 8192
"""Tokens of a batch whose answers may be remembered: the reference computes several like it."""


class Contest:
    """All candidates of one lane, loaded in this process."""

    def __init__(self, candidates: Sequence[Candidate], entries: Sequence[Entry | StepEntry]):
        self._candidates = candidates
        self._entries = entries
        self._modules: dict[str, Any] = {}
        self._interfaces = {c.name: interface_to_adapt(c) for c in candidates}
        self._expected: dict[str, dict[Place, Any]] = {}
        """The reference's outputs by case, of the latest entry."""
        self._template: tuple[str, Call] | None = None
        """Id of the served case that was laid out last, and its call."""
        self._tried = _largest_affordable(entries)

    def answer(self, request: Request) -> Measured:
        """Time the candidates on the entry; those that raise or are wrong are failures."""
        if not self._modules:
            self._load()
        entry = self._entries[request.index]
        ready, failures = [], {}
        for name in request.names:
            try:
                contestant = self._contestant(entry, name)
                call = contestant.make()
                mismatch = call.mismatch(call.run())
                if mismatch is None:
                    ready.append(contestant)
                else:
                    failures[name] = _wrong(mismatch)
            except Exception as error:  # a candidate may raise anything
                failures[name] = _raised(error)
        counted = isinstance(entry, Entry) and not request.itself
        groups = [ready[:1] * 2 if request.itself else ready]
        samples, together = [], True
        while groups:
            group = groups.pop()
            try:
                timed = self._timed(group, request, counted=counted)
                samples += [
                    sample
                    for sample, contestant in zip(timed, group, strict=True)
                    if request.itself or not self._remembers(entry, contestant, failures)
                ]
            except InfrastructureError:
                raise
            except WrongResultError as wrong:
                failures[wrong.name] = _wrong(wrong.mismatch)
                groups.append([member for member in group if member.name != wrong.name])
            except Exception as error:
                if len(group) == 1 or request.itself:
                    failures[group[0].name] = _raised(error)
                else:  # unknown which one raised: time each alone
                    groups += [[member] for member in group]
                    together = False
        with steady():
            gc.freeze()  # later collections skip all objects that exist by now
            work = self._work(entry, samples[0].name) if counted and samples else None
            return Measured(samples, failures, control.sample(), work, together)

    def _work(self, entry: Entry | StepEntry, name: str) -> Work | None:
        """Return what a call of the entry has to move and to compute, None for a step."""
        if not isinstance(entry, Entry):
            return None
        expected, template = self._expected[entry.case.id], self._template_of(entry)
        calls = self._calls(entry.operation, entry.case, name, expected, template=template)
        return work_of(calls, self._candidates[0].lane)

    def _timed(self, ready: list[Contestant], request: Request, *, counted: bool) -> list[Sample]:
        lane = self._candidates[0].lane
        if not ready:
            return []
        seconds, least, most = request.budget
        budget = Budget(seconds=seconds, least_rounds=least, most_rounds=most)
        costs = [count(contestant.thunk, lane) if counted else None for contestant in ready]
        with steady():
            taken = measure(ready, budget, lane)
        return [
            Sample(contestant.name, samples.calls, samples.host_ns, samples.device_ns, cost)
            for contestant, samples, cost in zip(ready, taken, costs, strict=True)
        ]

    def _remembers(
        self, entry: Entry | StepEntry, contestant: Contestant, failures: dict[str, TimingFailure]
    ) -> bool:
        """True if the candidate answers repeated inputs from memory, which is then its failure.

        Tried on one entry of each operation and kind of workload. Raises WrongResultError, and
        whatever the candidate raises.
        """
        if not isinstance(entry, Entry) or entry not in self._tried:
            return False
        name = contestant.name
        [candidate] = [c for c in self._candidates if c.name == name]
        if candidate.deviations or (name, entry.case.id) in entry.deviating:
            return False  # its outputs for new values are unknown
        if candidate.target == REFERENCE:
            return False  # its loops are the slowest part, and keep nothing
        makers = []
        for case in unseen(entry.case, problem_of, random.SystemRandom(), VALUES):
            expected = expected_outputs(entry.operation, case, candidate.device)
            makers.append(self._calls(entry.operation, case, name, expected).make)
        with steady():
            single_use = contestant.single_use
            text = remembering(name, makers, candidate.lane, single_use=single_use)
        if text:
            failures[name] = TimingFailure(FailureKind.REMEMBERED, text, entry.operation.name)
        return bool(text)

    def _load(self) -> None:
        import torch

        torch.set_num_threads(1)
        enter_lane(self._candidates[0])
        for candidate in self._candidates:
            try:
                self._modules[candidate.name] = load_to_time(candidate)
            except BaseException as error:  # an import may raise anything
                reason = f"{type(error).__name__}: {error}"[:300]
                raise InfrastructureError(
                    f"candidate {candidate.name} cannot be imported where it is timed: {reason}"
                ) from None

    def _contestant(self, entry: Entry | StepEntry, name: str) -> Contestant:
        cases = [(entry.operation, entry.case)] if isinstance(entry, Entry) else entry.cases
        template = self._template_of(entry)
        self._expect(cases, template)
        calls = [
            self._calls(
                operation,
                case,
                name,
                self._expected[case.id],
                template=template,
                deviates=(name, case.id) in entry.deviating,
            )
            for operation, case in cases
        ]
        single_use = any(call.is_single_use() for call in calls)
        if isinstance(entry, Entry):
            return Contestant(name, calls[0].make, single_use)
        return Contestant(name, lambda: _step([call.make() for call in calls]), single_use)

    def _template_of(self, entry: Entry | StepEntry) -> Call | None:
        """Return the call of a served case, to be copied; None for all others."""
        if not isinstance(entry, Entry) or entry.workload.kind != SERVED:
            return None
        if self._template is None or self._template[0] != entry.case.id:
            self._template = None  # frees its memory
            call = entry.operation.call.prepare(entry.case, 0, self._candidates[0].device)
            self._template = entry.case.id, call
        return self._template[1]

    def _expect(
        self, cases: Iterable[tuple[Operation, Case]], template: Call | None = None
    ) -> None:
        """Compute the reference's outputs, and forget those of other entries."""
        known, self._expected = self._expected, {}
        for operation, case in cases:
            operation.built_in.load()
            self._expected[case.id] = known.get(case.id) or expected_outputs(
                operation, case, self._candidates[0].device, template
            )

    def _calls(
        self,
        operation: Operation,
        case: Case,
        name: str,
        expected: dict[Place, Any],
        *,
        template: Call | None = None,
        deviates: bool = False,
    ) -> CandidateCalls:
        return CandidateCalls(
            operation,
            case,
            offered_by(self._modules[name], operation, self._interfaces[name]),
            self._candidates[0].device,
            expected,
            template,
            deviates=deviates,
        )


def _largest_affordable(entries: Sequence[Entry | StepEntry]) -> list[Entry]:
    """Return of each operation and kind of workload the largest entry with few tokens."""
    largest: dict[tuple[str, str], Entry] = {}
    for entry in sorted(
        (timed for timed in entries if isinstance(timed, Entry) and timed.workload.kind != SERVED),
        key=lambda timed: timed.workload.tokens,
    ):
        key = entry.operation.name, entry.workload.kind
        if entry.workload.tokens <= _MOST_TOKENS or key not in largest:
            largest[key] = entry
    return list(largest.values())


def _step(calls: Sequence[TimedCall]) -> TimedCall:
    """Return the calls of an engine step as one call."""
    thunks = [call.run for call in calls]

    def step() -> list[Any]:
        return [thunk() for thunk in thunks]

    def mismatch(results: list[Any]) -> Mismatch | None:
        mismatches = (call.mismatch(result) for call, result in zip(calls, results, strict=True))
        return next(filter(None, mismatches), None)

    def touch() -> None:
        for call in calls:
            call.touch()

    return TimedCall(step, mismatch, touch, nbytes=sum(call.nbytes for call in calls))


def _raised(error: Exception) -> TimingFailure:
    text = f"raised {type(error).__name__} while it was timed: {error}"[:200]
    return TimingFailure(FailureKind.RAISED, text)


def _wrong(mismatch: Mismatch) -> TimingFailure:
    text = f"returned another result while it was timed: {mismatch.text}"
    return TimingFailure(FailureKind.WRONG, text, mismatch.operation)
