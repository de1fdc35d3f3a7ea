"""The step benchmark: all metadata of one engine step, for the sampled steps of a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from statistics import median

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.timing import Step, StepComparison, Steps, Untimed
from attnproof.harness.timing.plan.entries import Sample, StepEntry
from attnproof.harness.timing.plan.timetable import STEP, STEP_OPERATIONS, TimedStep
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts
from attnproof.harness.timing.statistics import mean_ratio

_FEWEST = 2
"""Least operations of an engine step: one operation alone is in the other tables."""


def entries(
    steps: Sequence[TimedStep],
    candidates: Sequence[Candidate],
    verdicts: dict[str, CandidateVerdicts],
) -> tuple[list[Steps], list[StepEntry], list[Untimed]]:
    """Return one `Steps` for each trace and candidate, still empty; the entries; the untimed.

    An engine step consists of the operations that every candidate offers and has passed on
    all steps of the trace, so that all of them do the same work.
    """
    names = [candidate.name for candidate in candidates]
    empty_steps, to_time, untimed = [], [], []
    for trace, group in groupby(steps, key=lambda step: step.trace):
        members = list(group)
        requested = {case.operation.name for step in members for case in step.cases}
        left_out = {
            operation: reason
            for operation in STEP_OPERATIONS
            if (reason := _why_left_out(operation, members, verdicts))
        }
        kept = tuple(name for name in STEP_OPERATIONS if name not in left_out)
        if len(kept) < _FEWEST:
            reasons = [reason for name, reason in left_out.items() if name in requested]
            if len(kept) + len(reasons) >= _FEWEST:
                untimed += [_untimed(name, trace, reasons) for name in names]
            continue
        empty_steps += [
            Steps(trace=trace, candidate=name, operations=kept, left_out=left_out, steps=[])
            for name in names
        ]
        for step in members:
            cases = tuple((c.operation, c.case) for c in step.cases if c.operation.name in kept)
            deviating = frozenset(
                (name, case.id)
                for name in names
                for _, case in cases
                if verdicts[name].deviates_on(case)
            )
            to_time.append(StepEntry(trace, step.workload, cases, tuple(names), deviating))
    return empty_steps, to_time, untimed


def _untimed(candidate: str, trace: str, reasons: list[str]) -> Untimed:
    more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    reason = f"fewer than {_FEWEST} of its operations can be timed: {reasons[0]}{more}"
    return Untimed(operation=STEP, candidate=candidate, reason=reason, workload=trace)


def _why_left_out(
    operation: str, steps: list[TimedStep], verdicts: dict[str, CandidateVerdicts]
) -> str:
    """Return the first candidate that cannot be timed, with the reason; "" without one."""
    cases = [
        timed.case for step in steps for timed in step.cases if timed.operation.name == operation
    ]
    if not cases:
        return "not asked for"
    for name, verdict in verdicts.items():
        for case in cases:
            reason = verdict.why_untimed(operation, case)
            if reason:
                return f"{name}: {reason}"
    return ""


def step(entry: StepEntry, sample: Sample) -> Step:
    """Return the times of one candidate on one engine step."""
    return Step(
        source=entry.workload.name,
        case_id=_identity(entry),
        requests=entry.workload.requests,
        tokens=entry.workload.tokens,
        ns=[round(ns, 1) for ns in sample.host_ns],
    )


def _identity(entry: StepEntry) -> str:
    ids = " ".join(case.id for _, case in entry.cases)
    return hashlib.sha256(ids.encode()).hexdigest()[:12]


def comparisons(steps: Sequence[Steps], peers: Sequence[str]) -> Iterator[StepComparison]:
    """Compare each candidate with each peer, on the engine steps of both."""
    by_pair = {(trace_steps.trace, trace_steps.candidate): trace_steps for trace_steps in steps}
    for ((trace, candidate), mine), peer in product(by_pair.items(), peers):
        other = by_pair.get((trace, peer))
        if candidate in peers or other is None:
            continue
        times = {timed_step.source: median(timed_step.ns) for timed_step in other.steps}
        ratios = {s.source: times[s.source] / median(s.ns) for s in mine.steps if s.source in times}
        if ratios:
            yield _comparison(trace, candidate, peer, ratios)


def _comparison(trace: str, candidate: str, peer: str, ratios: dict[str, float]) -> StepComparison:
    mean, low, high = mean_ratio(list(ratios.values()))
    worst_source = min(ratios, key=ratios.__getitem__)
    return StepComparison(
        trace=trace,
        candidate=candidate,
        peer=peer,
        geometric_mean=mean,
        low=low,
        high=high,
        worst=ratios[worst_source],
        worst_source=worst_source,
    )
