"""The key `performance` of summary.json: ratios, steps, baseline."""

from __future__ import annotations

from attnproof.harness.model.timing import (
    BaselineState,
    Bench,
    Clock,
    Regression,
    StepComparison,
    Untimed,
)
from attnproof.harness.report.formats.summary_part import SummaryPart
from attnproof.harness.report.shared.baseline import worse
from attnproof.harness.report.shared.ratios import Gathered, by_operation, drift, overall, pairs
from attnproof.harness.report.shared.timings import timing_rows


class SummarySpeed(SummaryPart, kw_only=True):
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


class SummaryRate(SummaryPart, kw_only=True):
    """Bandwidth and floating-point rate of a candidate on a workload."""

    operation: str
    workload: str
    candidate: str
    clock: Clock
    bytes: int
    """Bytes of arguments and results that a call reads or writes."""
    gigabytes_per_second: float
    of_copy: float
    """Its bandwidth divided by that of a copy by torch of as many bytes in the same run."""
    teraflops_per_second: float | None
    """Null if floating-point operations are not counted."""
    of_matmul: float | None
    """Its floating-point rate divided by that of a large product of matrices by torch."""


class SummaryBaseline(SummaryPart, kw_only=True):
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


class SummaryPerformance(SummaryPart, kw_only=True):
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
    rates: list[SummaryRate]
    """Rates of the operations whose `Work` is declared, by workload."""
    steps: list[StepComparison]
    baseline: SummaryBaseline
    untimed: list[Untimed]


def summarize_performance(bench: Bench | None) -> SummaryPerformance | None:
    """Return the key `performance`, None if nothing was timed."""
    if bench is None:
        return None
    change = drift(bench.control_ns)
    all_pairs = pairs(bench)
    return SummaryPerformance.of(
        bench,
        timings=len(bench.timings),
        noise_floor=bench.noise.floor,
        minimum_effect=bench.noise.minimum_effect,
        clock_resolution_ns=bench.noise.clock_resolution_ns,
        control_change=change.change if change else None,
        overall=[_speed(overall(bench, pair)) for pair in all_pairs],
        operations=[_speed(entry) for pair in all_pairs for entry in by_operation(bench, pair)],
        rates=[
            SummaryRate.of(row, clock=row.clock, **row.rate._asdict())
            for row in timing_rows(bench)
            if row.rate
        ],
        steps=bench.step_comparisons,
        baseline=SummaryBaseline.of(
            bench.baseline, compared=len(bench.baseline.regressions), worse=worse(bench)
        ),
    )


def _speed(gathered: Gathered) -> SummarySpeed:
    return SummarySpeed.of(
        gathered,
        **gathered.pair._asdict(),
        worst=gathered.worst.ratio,
        worst_operation=gathered.worst.operation,
        worst_workload=gathered.worst.workload,
        **{verdict.replace(" ", "_"): count for verdict, count in gathered.counts.items()},
    )
