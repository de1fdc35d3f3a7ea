"""Comparisons grouped by pair of candidates and by operation; drift of the control."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from attnproof.harness.model.timing import Bench, Clock, Comparison, Speed
from attnproof.harness.report.shared.quantities import (
    SPEED_GLYPHS,
    SPEEDS,
    geometric_mean,
    median,
    quantile,
)


class Pair(NamedTuple):
    """A candidate, the peer that it is compared with, and the clock."""

    candidate: str
    peer: str
    clock: Clock


class Gathered(NamedTuple):
    """Comparisons of one pair: of one operation, or of all."""

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
        """Number of operations among the comparisons."""
        return len({comparison.operation for comparison in self.comparisons})


class Drift(NamedTuple):
    """Changes of the control during a run, as shares of its median."""

    change: float
    """From the median of the first fifth of the run to that of the last fifth."""
    spread: float
    """From the first to the last decile."""
    samples: int


def pairs(bench: Bench) -> list[Pair]:
    """Return every compared pair, in the order of the comparisons; host before device."""
    compared_pairs = dict.fromkeys(Pair(c.candidate, c.peer, c.clock) for c in bench.comparisons)
    return sorted(compared_pairs, key=lambda pair: pair.clock != "host")


def by_operation(bench: Bench, pair: Pair) -> list[Gathered]:
    """Return one entry per operation, the smallest geometric mean first."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in _of(bench, pair):
        groups.setdefault(comparison.operation, []).append(comparison)
    gathered = [_gather(name, pair, comparisons) for name, comparisons in groups.items()]
    return sorted(gathered, key=lambda entry: (entry.geometric_mean, entry.operation))


def overall(bench: Bench, pair: Pair) -> Gathered:
    """Return all comparisons of the pair as one entry."""
    return _gather("", pair, _of(bench, pair))


def counts_text(counts: dict[Speed, int]) -> str:
    """Return the counts above 0, such as "▲ 14 faster, ◇ 1 no evidence"."""
    return ", ".join(
        f"{SPEED_GLYPHS[speed]} {counts[speed]:,} {speed}" for speed in SPEEDS if counts[speed]
    )


def drift(samples: list[float]) -> Drift | None:
    """Return the drift of the control's samples, None for fewer than five samples."""
    fifth = len(samples) // 5
    if not fifth:
        return None
    middle = median(samples)
    change = (median(samples[-fifth:]) - median(samples[:fifth])) / middle
    spread = (quantile(samples, 0.9) - quantile(samples, 0.1)) / middle
    return Drift(change, spread, len(samples))


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
