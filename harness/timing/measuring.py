"""A benchmark from its plan to its figures: everything timed in turn, compared, held to noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.timing import Bench, Steps, Untimed
from attnproof.harness.timing import steps as step_benchmark
from attnproof.harness.timing.analysis.figures import comparisons, timings
from attnproof.harness.timing.analysis.noise import Pair, noise_of
from attnproof.harness.timing.plan.entries import RAISED, Entry, Measured, Sample, StepEntry
from attnproof.harness.timing.plan.standing import Standing
from attnproof.harness.timing.plan.timetable import STEP, TimedCase, TimedStep, why_never
from attnproof.harness.timing.process.clocks import host_clock
from attnproof.harness.timing.process.paired import Budget
from attnproof.harness.timing.session import TimingProcess

_Kind = TypeVar("_Kind", Entry, StepEntry)
_MOST_NOISE = 24
"""Entries of which a candidate is timed against itself."""
_LONGEST_S, _SHORTEST_S = 1.0, 0.02
"""What one entry may take of the budget."""
_ROUNDS = (10, 400)
_STEP_ROUNDS = (5, 40)


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """What is timed: all candidates of one lane, `peer` is who the others are compared with."""

    operations: Sequence[Operation]
    candidates: Sequence[Candidate]
    peer: str
    """Name of a candidate, "" to compare nobody."""
    cases: Sequence[TimedCase]
    steps: Sequence[TimedStep]
    seconds: float
    """For everything that is timed; entries of slow calls take longer all the same."""

    def only(self, wanted: set[tuple[str, str]]) -> TimingPlan:
        """The part with these operations and workloads, or `STEP` and traces.

        Each entry gets twice the time that it has in the whole, as far as `seconds` goes.
        """
        cases = [c for c in self.cases if (c.operation.name, c.workload.name) in wanted]
        steps = [step for step in self.steps if (STEP, step.trace) in wanted]
        share = self.seconds / max(1, _turns(len(self.cases) + len(self.steps)))
        return replace(
            self,
            operations=[op for op in self.operations if any(c.operation is op for c in cases)],
            cases=cases,
            steps=steps,
            seconds=min(self.seconds, 2 * share * _turns(len(cases) + len(steps))),
        )


@dataclass
class Outcome:
    """What came of it."""

    bench: Bench
    problems: list[str]
    """What should have a time and has none."""
    interrupted: bool


@dataclass
class _Work:
    """Entries with their budgets, and what was measured so far."""

    entries: list[Entry | StepEntry]
    seconds: float
    """Budget of one entry."""
    taken: dict[int, Measured] = field(default_factory=dict)
    against_itself: list[Pair] = field(default_factory=list)
    control_ns: list[float] = field(default_factory=list)


def time_all(
    plan: TimingPlan, standings: dict[str, Standing], told: Callable[[str, int, int], None]
) -> Outcome:
    """Time what is verified (InfrastructureError); an interrupt ends it with what there is.

    `told` hears the name of each entry that begins, its number and how many there are.
    """
    started = time.monotonic()
    resolution_ns = host_clock().resolution_ns
    untimed, entries = _entries(plan, standings)
    steps, step_entries, no_steps = step_benchmark.entries(plan.steps, plan.candidates, standings)
    work = _plan_work([*entries, *step_entries], plan.seconds)
    interrupted = False
    try:
        _measure(work, plan.candidates, told)
    except KeyboardInterrupt:
        interrupted = True
    noise = noise_of(work.against_itself, resolution_ns)
    bench = Bench(timings=[], comparisons=[], untimed=untimed + no_steps, noise=noise)
    problems = _add_timings(bench, work, standings, plan.peer)
    problems += _add_steps(bench, steps, work, plan.peer)
    bench.control_ns = [round(ns, 1) for ns in work.control_ns]
    bench.seconds = round(time.monotonic() - started, 1)
    return Outcome(bench, problems, interrupted)


def _turns(entries: int) -> int:
    """How often something is timed: each entry, and some of them against themselves too."""
    return entries + min(_MOST_NOISE, entries)


def _plan_work(entries: list[Entry | StepEntry], seconds: float) -> _Work:
    share = seconds / max(1, _turns(len(entries)))
    return _Work(entries, min(_LONGEST_S, max(_SHORTEST_S, share)))


def _measure(
    work: _Work, candidates: Sequence[Candidate], told: Callable[[str, int, int], None]
) -> None:
    """Every entry, and every few of them a candidate against itself."""
    total = len(work.entries)
    every = max(1, -(-total // _MOST_NOISE))
    if not total:
        return
    with TimingProcess(candidates, work.entries) as process:
        for place, entry in enumerate(work.entries):
            of_step = isinstance(entry, StepEntry)
            told(
                entry.trace if isinstance(entry, StepEntry) else entry.operation.name, place, total
            )
            rounds = _STEP_ROUNDS if of_step else _ROUNDS
            budget = Budget(seconds=work.seconds, least_rounds=rounds[0], most_rounds=rounds[1])
            measured = process.measure(place, budget)
            work.taken[place] = measured
            if measured.control_ns:  # whoever ended the process has left none
                work.control_ns.append(measured.control_ns)
            if place % every == 0 and measured.samples and not of_step:
                name = measured.samples[0].name
                found = process.measure(place, budget, [name], itself=True).samples
                if len(found) == 2:
                    work.against_itself += _pairs(*found)


def _pairs(one: Sample, other: Sample) -> Iterator[Pair]:
    yield one.host_ns, other.host_ns
    if one.device_ns:
        yield one.device_ns, other.device_ns


def _measured(work: _Work, kind: type[_Kind]) -> Iterator[tuple[_Kind, Measured]]:
    for place, measured in work.taken.items():
        entry = work.entries[place]
        if isinstance(entry, kind):
            yield entry, measured


def _entries(plan: TimingPlan, standings: dict[str, Standing]) -> tuple[list[Untimed], list[Entry]]:
    """What may be timed, and why the rest may not: once an operation where that is the same."""
    untimed: list[Untimed] = []
    entries: list[Entry] = []
    names = [candidate.name for candidate in plan.candidates]
    for operation in plan.operations:
        cases = [timed for timed in plan.cases if timed.operation is operation]
        never = why_never(operation) or ("" if cases else "no workload has a case of it")
        if never:
            untimed += [_untimed(operation, name, never) for name in names]
            continue
        bars = {n: [standings[n].bar(operation.name, timed.case) for timed in cases] for n in names}
        for name, found in bars.items():
            if found[0] and len(set(found)) == 1:
                untimed.append(_untimed(operation, name, found[0]))
            else:
                untimed += [
                    _untimed(operation, name, bar, timed.workload.name)
                    for timed, bar in zip(cases, found, strict=True)
                    if bar
                ]
        for place, timed in enumerate(cases):
            free = tuple(name for name in names if not bars[name][place])
            if free:
                entries.append(Entry(operation, timed.workload, timed.case, free))
    return untimed, entries


def _untimed(operation: Operation, candidate: str, reason: str, workload: str = "") -> Untimed:
    return Untimed(operation=operation.name, candidate=candidate, reason=reason, workload=workload)


def _add_timings(bench: Bench, work: _Work, standings: dict[str, Standing], peer: str) -> list[str]:
    """The figures of all entries; what should have some and has none.

    A candidate that raises where it is known to raise has no time, as is known. A crash or
    a hang is never known: that case was judged before, and the candidate lived.
    """
    problems = []
    for entry, measured in _measured(work, Entry):
        bench.timings += timings(entry, measured, standings)
        bench.comparisons += comparisons(entry, measured, peer, bench.noise)
        for name, reason in measured.wrong.items():
            raises = standings[name].known_to_raise(entry.case)
            known = ", ".join(raises) if reason.startswith(RAISED) else ""
            why = f"known deviation {known}: {reason}" if known else reason
            bench.untimed.append(_untimed(entry.operation, name, why, entry.workload.name))
            if not known:
                problems.append(f"{entry.operation.name} of {name} {reason}")
    return problems


def _add_steps(bench: Bench, steps: list[Steps], work: _Work, peer: str) -> list[str]:
    """The steps' samples and comparisons; what went wrong."""
    problems = []
    found = {(of.trace, of.candidate): of for of in steps}
    for entry, taken in _measured(work, StepEntry):
        problems += [f"a step of {entry.trace} by {n} {why}" for n, why in taken.wrong.items()]
        for sample in taken.samples:
            found[entry.trace, sample.name].steps.append(step_benchmark.step(entry, sample))
    bench.steps = [of for of in steps if of.steps]
    bench.step_comparisons = list(step_benchmark.comparisons(bench.steps, peer))
    return problems
