"""The step benchmark: all the metadata of one engine step, step after step of a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.timing import Step, StepComparison, Steps, Untimed
from attnproof.harness.timing.plan.entries import Sample, StepEntry
from attnproof.harness.timing.plan.standing import Standing
from attnproof.harness.timing.plan.timetable import STEP, STEP_OPERATIONS, TimedStep
from attnproof.harness.timing.statistics import mean_ratio

_NOT_ASKED_FOR = "not asked for"
_FEWEST = 2
"""Operations that make a step: one alone is in the other tables."""


def entries(
    steps: Sequence[TimedStep], candidates: Sequence[Candidate], standings: dict[str, Standing]
) -> tuple[list[Steps], list[StepEntry], list[Untimed]]:
    """One `Steps` a trace and candidate, still empty; the steps to time; traces without any.

    A step consists of what every candidate offers and has passed on all steps of the
    trace, so that all of them do the same work.
    """
    names = [candidate.name for candidate in candidates]
    made, to_time, untimed = [], [], []
    for trace, group in groupby(steps, key=lambda step: step.trace):
        members = list(group)
        left_out = {
            operation: reason
            for operation in STEP_OPERATIONS
            if (reason := _why_left_out(operation, members, names, standings))
        }
        kept = tuple(name for name in STEP_OPERATIONS if name not in left_out)
        if len(kept) < _FEWEST:
            reasons = [reason for reason in left_out.values() if reason != _NOT_ASKED_FOR]
            if len(kept) + len(reasons) >= _FEWEST:
                untimed += [_untimed(name, trace, reasons) for name in names]
            continue
        made += [
            Steps(trace=trace, candidate=name, operations=kept, left_out=left_out, steps=[])
            for name in names
        ]
        for step in members:
            cases = tuple((c.operation, c.case) for c in step.cases if c.operation.name in kept)
            to_time.append(StepEntry(trace, step.workload, cases, tuple(names)))
    return made, to_time, untimed


def _untimed(candidate: str, trace: str, reasons: list[str]) -> Untimed:
    more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    reason = f"fewer than {_FEWEST} of its operations can be timed: {reasons[0]}{more}"
    return Untimed(operation=STEP, candidate=candidate, reason=reason, workload=trace)


def _why_left_out(
    operation: str, steps: list[TimedStep], names: list[str], standings: dict[str, Standing]
) -> str:
    """Who cannot do it, and why; "" if all can."""
    cases = [one.case for step in steps for one in step.cases if one.operation.name == operation]
    if not cases:
        return _NOT_ASKED_FOR
    for name in names:
        for case in cases:
            reason = standings[name].bar(operation, case)
            if reason:
                return f"{name}: {reason}"
    return ""


def step(entry: StepEntry, sample: Sample) -> Step:
    """One candidate on one step."""
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


def comparisons(steps: Sequence[Steps], peer: str) -> Iterator[StepComparison]:
    """Everybody beside the peer, over the steps that both were timed on."""
    by_pair = {(of.trace, of.candidate): of for of in steps}
    for (trace, candidate), of in by_pair.items():
        other = by_pair.get((trace, peer))
        if candidate == peer or other is None:
            continue
        times = {one.source: median(one.ns) for one in other.steps}
        ratios = {s.source: times[s.source] / median(s.ns) for s in of.steps if s.source in times}
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
