"""Comparisons gathered: by pair of candidates, and within a pair by operation."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from attnproof.harness.model.timing import (
    BaselineResult,
    BaselineState,
    Bench,
    Clock,
    Comparison,
    Regression,
    Speed,
)
from attnproof.harness.report.shared.quantities import (
    SPEED_GLYPHS,
    SPEEDS,
    between,
    geometric_mean,
    median,
    quantile,
    ratio_text,
)

_SAME_SPEED = 0.05
"""How much the control may differ before that is worth a word."""


class Pair(NamedTuple):
    """Who was timed against whom, by which clock."""

    candidate: str
    peer: str
    clock: Clock


class Gathered(NamedTuple):
    """Several comparisons of one pair: those of an operation, or all."""

    operation: str
    """"" for all operations."""
    pair: Pair
    comparisons: tuple[Comparison, ...]
    geometric_mean: float
    worst: Comparison
    best: Comparison
    counts: dict[Speed, int]

    @property
    def operations(self) -> int:
        """Operations that the comparisons belong to."""
        return len({comparison.operation for comparison in self.comparisons})


class Drift(NamedTuple):
    """What the control's samples say of the machine, as shares of its median."""

    change: float
    """From the first fifth of the run to the last."""
    spread: float
    """From its first to its last decile."""
    samples: int


def pairs(bench: Bench) -> list[Pair]:
    """Every pair that was compared, in the order of the comparisons; host before device."""
    found = dict.fromkeys(Pair(c.candidate, c.peer, c.clock) for c in bench.comparisons)
    return sorted(found, key=lambda pair: pair.clock != "host")


def by_operation(bench: Bench, pair: Pair) -> list[Gathered]:
    """One entry an operation, the one with the smallest geometric mean first."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in _of(bench, pair):
        groups.setdefault(comparison.operation, []).append(comparison)
    gathered = [_gather(name, pair, found) for name, found in groups.items()]
    return sorted(gathered, key=lambda entry: (entry.geometric_mean, entry.operation))


def overall(bench: Bench, pair: Pair) -> Gathered:
    """Everything that was compared of the pair."""
    return _gather("", pair, _of(bench, pair))


def counts_text(counts: dict[Speed, int]) -> str:
    """ "▲ 14 faster, ◇ 1 no evidence"; verdicts that nobody got are left out."""
    return ", ".join(
        f"{SPEED_GLYPHS[speed]} {counts[speed]:,} {speed}" for speed in SPEEDS if counts[speed]
    )


def drift(samples: list[float]) -> Drift | None:
    """Of the control, None if it has too few samples to have a beginning and an end."""
    fifth = len(samples) // 5
    if not fifth:
        return None
    middle = median(samples)
    change = (median(samples[-fifth:]) - median(samples[:fifth])) / middle
    spread = (quantile(samples, 0.9) - quantile(samples, 0.1)) / middle
    return Drift(change, spread, len(samples))


def is_worse(regression: Regression) -> bool:
    """Whether the timing is slower than the baseline's, or does more work than it did."""
    return regression.verdict == "slower" or bool(regression.costs)


def worse(bench: Bench) -> list[Regression]:
    """What got worse since the baseline, the largest slowdown first."""
    found = [entry for entry in bench.baseline.regressions if is_worse(entry)]
    return sorted(found, key=lambda r: (-r.ratio, r.operation, r.candidate, r.workload, r.clock))


def worse_text(regression: Regression, state: BaselineState) -> str:
    """What got worse, in words; of a baseline whose times say nothing here only the counts."""
    interval = between(regression.low, regression.high)
    times = f"{ratio_text(regression.ratio)} the {regression.clock} time of then ({interval})"
    said = [times] if state == "compared" else []
    return "; ".join([*said, *filter(None, [regression.costs])])


def control_text(result: BaselineResult) -> str:
    """What the control says of the machine then and now, "" where it takes about as long."""
    if abs(result.control - 1) <= _SAME_SPEED:
        return ""
    return f"; the control takes {ratio_text(result.control)} the time of then"


def not_confirmed_text(result: BaselineResult) -> str:
    """ ", 2 looked slower and did not when timed again", "" if none did."""
    count = result.not_confirmed
    return f", {count:,} looked slower and did not when timed again" if count else ""


def _of(bench: Bench, pair: Pair) -> list[Comparison]:
    return [c for c in bench.comparisons if Pair(c.candidate, c.peer, c.clock) == pair]


def _gather(operation: str, pair: Pair, comparisons: list[Comparison]) -> Gathered:
    ordered = sorted(comparisons, key=lambda c: (c.ratio, c.operation, c.workload))
    counts = Counter(comparison.verdict for comparison in comparisons)
    return Gathered(
        operation=operation,
        pair=pair,
        comparisons=tuple(comparisons),
        geometric_mean=geometric_mean([comparison.ratio for comparison in comparisons]),
        worst=ordered[0],
        best=ordered[-1],
        counts={speed: counts[speed] for speed in SPEEDS},
    )
