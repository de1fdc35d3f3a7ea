"""A benchmark from its plan to its results: time all entries, compare, apply the noise floor."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

import msgspec

from attnproof.harness.model.candidate import REFERENCE, Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.timing import Bench, Comparison, Noise, Step, Steps, Timing, Untimed
from attnproof.harness.timing import steps as step_benchmark
from attnproof.harness.timing.analysis.figures import comparisons, timings
from attnproof.harness.timing.analysis.noise import Pair, noise_of
from attnproof.harness.timing.analysis.wrong_results import WrongResult, without_times
from attnproof.harness.timing.plan.entries import (
    Entry,
    FailureKind,
    Measured,
    Sample,
    StepEntry,
    TimingFailure,
)
from attnproof.harness.timing.plan.timetable import SERVED, STEP, TimedCase, TimedStep, why_never
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts
from attnproof.harness.timing.process.clocks import host_clock
from attnproof.harness.timing.process.paired import Budget
from attnproof.harness.timing.session import TimingProcess

_Kind = TypeVar("_Kind", Entry, StepEntry)
_MOST_NOISE, _FEWEST_NOISE = 24, 5
"""Entries on which a candidate is timed against itself: at most, and without time for more."""
_LONGEST_S, _SHORTEST_S = 1.0, 0.02
"""Limits of the time for the samples of one entry, in seconds."""
_ROUNDS, _STEP_ROUNDS = 400, 40
"""Most rounds of an entry."""
_LEAST_ROUNDS = 12
"""Rounds with which the test is significant although one sample is an outlier."""
Progress = Callable[[str, int, int], None]
"""Called for each entry that begins: its label, its index, the number of entries."""


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """The cases and engine steps to time, and the candidates, all of one lane."""

    operations: Sequence[Operation]
    candidates: Sequence[Candidate]
    peers: Sequence[str]
    """Names of the candidates that the others are compared with."""
    cases: Sequence[TimedCase]
    steps: Sequence[TimedStep]
    seconds: float
    """Time for all entries together; the fewest samples of each are taken in any case."""

    def only(self, wanted: set[tuple[str, str]]) -> TimingPlan:
        """Return the part with these pairs of operation and workload, or `STEP` and trace.

        Each entry gets twice its time in the whole plan; together at most `seconds`.
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
    """The result of timing a plan."""

    bench: Bench
    problems: list[str]
    """Failures of candidates that should have a time, in words."""
    wrong: list[WrongResult]
    """Candidates that returned another result while they were timed."""
    interrupted: bool


@dataclass
class _Work:
    """Entries, and the results so far."""

    entries: list[Entry | StepEntry]
    end: float
    """Time at which all entries should be measured, by `time.monotonic`."""
    measured: dict[int, Measured] = field(default_factory=dict)
    """Results by index of the entry."""
    against_itself: list[Pair] = field(default_factory=list)
    control_ns: list[float] = field(default_factory=list)


def time_all(
    plan: TimingPlan, verdicts: dict[str, CandidateVerdicts], progress: Progress
) -> Outcome:
    """Time everything that is verified (InfrastructureError).

    An interrupt ends the timing early; the outcome then holds the results so far.
    """
    started = time.monotonic()
    resolution_ns = host_clock().resolution_ns
    untimed, entries = _entries(plan, verdicts)
    steps, step_entries, no_steps = step_benchmark.entries(plan.steps, plan.candidates, verdicts)
    work = _Work([*entries, *step_entries], started + plan.seconds)
    interrupted = False
    try:
        _measure(work, plan.candidates, progress)
    except KeyboardInterrupt:
        interrupted = True
    noise = noise_of(work.against_itself, resolution_ns)
    timed, compared = _results(work, verdicts, plan.peers, noise)
    failed, problems = _failures(work, verdicts)
    steps, step_problems = _steps(steps, work)
    wrong = _first_failures(work, FailureKind.WRONG)
    remembered = _first_failures(work, FailureKind.REMEMBERED)
    problems += [f"{entry.operation} of {entry.candidate} {entry.reason}" for entry in remembered]
    bench = Bench(
        timings=timed,
        comparisons=compared,
        untimed=[*untimed, *no_steps, *failed],
        noise=noise,
        steps=steps,
        step_comparisons=list(step_benchmark.comparisons(steps, plan.peers)),
        control_ns=[round(ns, 1) for ns in work.control_ns],
        seconds=round(time.monotonic() - started, 1),
    )
    bench = without_times(bench, [*wrong, *remembered])
    return Outcome(bench, problems + step_problems, wrong, interrupted)


def _turns(entries: int) -> int:
    """Return the number of measurements: one per entry, and a second one for some entries."""
    return entries + min(_MOST_NOISE, entries)


def _sampling_s(seconds: float, turns: int, entries: int, other_s: Sequence[float]) -> float:
    """Return the seconds for the samples of one turn, if `turns` of `entries` share `seconds`.

    `other_s` are the seconds that each earlier entry took beside its samples: for inputs, the
    reference's outputs and counts.
    """
    # The median: an entry in which candidates compile says nothing about later ones.
    others = entries * median(other_s) if other_s else 0.0
    return min(_LONGEST_S, max(_SHORTEST_S, (seconds - others) / turns))


def _measure(work: _Work, candidates: Sequence[Candidate], progress: Progress) -> None:
    """Time every entry, and on some of them a candidate against itself."""
    total = len(work.entries)
    every = max(1, -(-total // _MOST_NOISE))
    if not total:
        return
    other_s: list[float] = []
    with TimingProcess(candidates, work.entries) as process:
        for index, entry in enumerate(work.entries):
            progress(entry.label, index, total)
            begin, left = time.monotonic(), total - index
            is_step = isinstance(entry, StepEntry)
            budget = Budget(
                seconds=_sampling_s(work.end - begin, left + -(-left // every), left, other_s),
                least_rounds=_LEAST_ROUNDS,
                most_rounds=_STEP_ROUNDS if is_step else _ROUNDS,
            )
            measured = process.measure(index, budget)
            work.measured[index] = measured
            if measured.control_ns:  # 0 if the process died
                work.control_ns.append(measured.control_ns)
            sampled_s = budget.seconds
            is_spent = budget.seconds == _SHORTEST_S and len(work.against_itself) >= _FEWEST_NOISE
            if index % every == 0 and measured.samples and not is_step and not is_spent:
                name = measured.samples[0].name
                samples = process.measure(index, budget, [name], itself=True).samples
                sampled_s += budget.seconds
                if len(samples) == 2:
                    work.against_itself += _pairs(*samples)
            other_s.append(time.monotonic() - begin - sampled_s)


def _pairs(sample: Sample, other: Sample) -> Iterator[Pair]:
    yield sample.host_ns, other.host_ns
    if sample.device_ns:
        yield sample.device_ns, other.device_ns


def _measured(work: _Work, kind: type[_Kind]) -> Iterator[tuple[_Kind, Measured]]:
    for index, measured in work.measured.items():
        entry = work.entries[index]
        if isinstance(entry, kind):
            yield entry, measured


def _entries(
    plan: TimingPlan, verdicts: dict[str, CandidateVerdicts]
) -> tuple[list[Untimed], list[Entry]]:
    """Return the untimed operations with reasons, and the entries to time.

    A reason that holds for all workloads of an operation and candidate is given once.
    """
    untimed: list[Untimed] = []
    entries: list[Entry] = []
    names = [candidate.name for candidate in plan.candidates]
    for operation in plan.operations:
        cases = [timed for timed in plan.cases if timed.operation is operation]
        never = why_never(operation) or ("" if cases else "no workload has a case of it")
        if never:
            untimed += [_untimed(operation, name, never) for name in names]
            continue
        reasons = {
            candidate.name: [_why_untimed(verdicts[candidate.name], candidate, c) for c in cases]
            for candidate in plan.candidates
        }
        for name, per_case in reasons.items():
            if per_case[0] and len(set(per_case)) == 1:
                untimed.append(_untimed(operation, name, per_case[0]))
            else:
                untimed += [
                    _untimed(operation, name, reason, timed.workload.name)
                    for timed, reason in zip(cases, per_case, strict=True)
                    if reason
                ]
        for index, timed in enumerate(cases):
            free = tuple(name for name in names if not reasons[name][index])
            if free:
                deviating = frozenset(
                    (name, timed.case.id) for name in free if verdicts[name].deviates_on(timed.case)
                )
                entries.append(Entry(operation, timed.workload, timed.case, free, deviating))
    return untimed, entries


def _why_untimed(verdicts: CandidateVerdicts, candidate: Candidate, timed: TimedCase) -> str:
    """Return why the candidate is not timed on the case, "" if it is."""
    served = timed.workload.kind == SERVED
    if served and candidate.target == REFERENCE:
        return "a batch that a GPU serves takes its loops seconds a call"
    return verdicts.why_untimed(timed.operation.name, timed.case, verified=not served)


def _untimed(operation: Operation, candidate: str, reason: str, workload: str = "") -> Untimed:
    return Untimed(operation=operation.name, candidate=candidate, reason=reason, workload=workload)


def _results(
    work: _Work, verdicts: dict[str, CandidateVerdicts], peers: Sequence[str], noise: Noise
) -> tuple[list[Timing], list[Comparison]]:
    timed: list[Timing] = []
    compared: list[Comparison] = []
    for entry, measured in _measured(work, Entry):
        timed += timings(entry, measured, verdicts)
        compared += comparisons(entry, measured, peers, noise)
    return timed, compared


def _failures(
    work: _Work, verdicts: dict[str, CandidateVerdicts]
) -> tuple[list[Untimed], list[str]]:
    """Return the candidates that failed while they were timed, and the unexpected failures."""
    untimed, problems = [], []
    for entry, measured in _measured(work, Entry):
        for name, failure in _without_a_time(measured):
            known = _known_deviations(failure, verdicts[name], entry)
            reason = f"known deviation {known}: {failure.text}" if known else failure.text
            untimed.append(_untimed(entry.operation, name, reason, entry.workload.name))
            if not known:
                problems.append(f"{entry.operation.name} of {name} {failure.text}")
    return untimed, problems


def _without_a_time(measured: Measured) -> list[tuple[str, TimingFailure]]:
    """Return the failures that hold for this entry alone, and leave open what is right."""
    whole = (FailureKind.WRONG, FailureKind.REMEMBERED)
    return [
        (name, failure) for name, failure in measured.failures.items() if failure.kind not in whole
    ]


def _first_failures(work: _Work, kind: FailureKind) -> list[WrongResult]:
    """Return the first failure of this kind of each candidate and operation."""
    by_pair: dict[tuple[str, str], WrongResult] = {}
    for index, measured in work.measured.items():
        where = work.entries[index].workload.name
        for name, failure in measured.failures.items():
            if failure.kind is kind:
                wrong = WrongResult(failure.operation, name, where, failure.text)
                by_pair.setdefault((wrong.operation, name), wrong)
    return list(by_pair.values())


def _known_deviations(failure: TimingFailure, verdicts: CandidateVerdicts, entry: Entry) -> str:
    """Return the known deviations by which the candidate raises on the case, "" without any."""
    # A crash or a hang is never known: the candidate survived this case when it was judged.
    if failure.kind is not FailureKind.RAISED:
        return ""
    return ", ".join(verdicts.raising_deviations(entry.case))


def _steps(steps: list[Steps], work: _Work) -> tuple[list[Steps], list[str]]:
    """Fill in the engine steps that were timed; return also the failures, in words."""
    problems: list[str] = []
    timed: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for entry, measured in _measured(work, StepEntry):
        problems += [
            f"a step of {entry.trace} by {name} {failure.text}"
            for name, failure in _without_a_time(measured)
        ]
        for sample in measured.samples:
            timed[entry.trace, sample.name].append(step_benchmark.step(entry, sample))
    filled = [
        msgspec.structs.replace(trace_steps, steps=timed[trace_steps.trace, trace_steps.candidate])
        for trace_steps in steps
        if (trace_steps.trace, trace_steps.candidate) in timed
    ]
    return filled, problems
