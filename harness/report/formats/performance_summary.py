"""The key `performance` of summary.json: ratios, steps, baseline."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.timing import (
    BaselineState,
    Bench,
    Clock,
    Regression,
    StepComparison,
    Untimed,
)
from attnproof.harness.report.shared.baseline import worse
from attnproof.harness.report.shared.ratios import Gathered, by_operation, drift, overall, pairs


class SummarySpeed(msgspec.Struct, kw_only=True):
    """One candidate against a peer, over all workloads of one or of all operations."""

    operation: str
    """Name, "" for all operations."""
    candidate: str
    peer: str
    clock: Clock
    geometric_mean: float
    """Mean of the ratios, peer's time divided by the candidate's: above 1 is faster."""
    worst: float
    worst_operation: str
    worst_workload: str
    faster: int
    slower: int
    no_evidence: int


class SummaryBaseline(msgspec.Struct, kw_only=True):
    """The comparison with a baseline; times were compared only in the state "compared"."""

    state: BaselineState
    name: str
    created: str
    reason: str
    """Reason why no time was compared, "" otherwise."""
    compared: int
    """Number of timings in both runs."""
    worse: list[Regression]
    """Timings that are slower or whose exact counts grew, the largest slowdown first."""
    lost: list[str]
    """Timings in the baseline only."""
    control: float
    """Time of the control divided by its time in the baseline."""
    not_confirmed: int
    """Number of timings that looked slower, but not when timed again."""


class SummaryPerformance(msgspec.Struct, kw_only=True):
    """The timings in short; every sample is in bench.json."""

    timings: int
    seconds: float
    noise_floor: float
    minimum_effect: float
    clock_resolution_ns: float
    control_change: float | None
    """Change of the control over the run as a share of its median, null for too few samples."""
    overall: list[SummarySpeed]
    operations: list[SummarySpeed]
    steps: list[StepComparison]
    baseline: SummaryBaseline
    untimed: list[Untimed]


def summarize_performance(bench: Bench | None) -> SummaryPerformance | None:
    """Return the key `performance`, None if nothing was timed."""
    if bench is None:
        return None
    seen = drift(bench.control_ns)
    found = pairs(bench)
    return SummaryPerformance(
        timings=len(bench.timings),
        seconds=bench.seconds,
        noise_floor=bench.noise.floor,
        minimum_effect=bench.noise.minimum_effect,
        clock_resolution_ns=bench.noise.clock_resolution_ns,
        control_change=seen.change if seen else None,
        overall=[_speed(overall(bench, pair)) for pair in found],
        operations=[_speed(entry) for pair in found for entry in by_operation(bench, pair)],
        steps=bench.step_comparisons,
        baseline=_baseline(bench),
        untimed=bench.untimed,
    )


def _speed(gathered: Gathered) -> SummarySpeed:
    return SummarySpeed(
        operation=gathered.operation,
        candidate=gathered.pair.candidate,
        peer=gathered.pair.peer,
        clock=gathered.pair.clock,
        geometric_mean=gathered.geometric_mean,
        worst=gathered.worst.ratio,
        worst_operation=gathered.worst.operation,
        worst_workload=gathered.worst.workload,
        faster=gathered.counts["faster"],
        slower=gathered.counts["slower"],
        no_evidence=gathered.counts["no evidence"],
    )


def _baseline(bench: Bench) -> SummaryBaseline:
    result = bench.baseline
    return SummaryBaseline(
        state=result.state,
        name=result.name,
        created=result.created,
        reason=result.reason,
        compared=len(result.regressions),
        worse=worse(bench),
        lost=result.lost,
        control=result.control,
        not_confirmed=result.not_confirmed,
    )
