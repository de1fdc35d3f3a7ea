"""The part of summary.json that says how fast the candidates are."""

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
from attnproof.harness.report.shared.ratios import (
    Gathered,
    by_operation,
    drift,
    overall,
    pairs,
    worse,
)


class SummarySpeed(msgspec.Struct, kw_only=True):
    """One candidate against a peer, over all workloads of an operation or of all operations."""

    operation: str
    """"" for all of them."""
    candidate: str
    peer: str
    clock: Clock
    geometric_mean: float
    """Of the ratios, peer's time over the candidate's: above 1 the candidate is faster."""
    worst: float
    worst_operation: str
    worst_workload: str
    faster: int
    slower: int
    no_evidence: int


class SummaryBaseline(msgspec.Struct, kw_only=True):
    """What became of the comparison with a baseline; only "compared" compared times."""

    state: BaselineState
    name: str
    created: str
    reason: str
    """Why nothing was compared, "" otherwise."""
    compared: int
    """Timings that both have."""
    worse: list[Regression]
    """Slower ones and those whose exact counts grew, the largest slowdown first."""
    lost: list[str]
    """Timings that only the baseline has."""
    control: float
    """How many times as long the control takes as it did then."""
    not_confirmed: int
    """Timings that looked slower, and did not when they were timed again."""


class SummaryPerformance(msgspec.Struct, kw_only=True):
    """What was timed; every sample is in bench.json."""

    timings: int
    seconds: float
    noise_floor: float
    minimum_effect: float
    clock_resolution_ns: float
    control_change: float | None
    """Of the machine from the beginning of the run to its end, null if it was not watched."""
    overall: list[SummarySpeed]
    operations: list[SummarySpeed]
    steps: list[StepComparison]
    baseline: SummaryBaseline
    untimed: list[Untimed]


def summarize_performance(bench: Bench | None) -> SummaryPerformance | None:
    """The numbers that a program asks for first, None where nothing was timed."""
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
