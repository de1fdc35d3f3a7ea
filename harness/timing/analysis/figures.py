"""Timings and comparisons from samples: medians with intervals, ratios with a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from attnproof.harness.model.timing import Clock, Comparison, Noise, Timing
from attnproof.harness.timing.plan.entries import Entry, Measured
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts
from attnproof.harness.timing.statistics import interval, mann_whitney, ratio, verdict


def timings(
    entry: Entry, measured: Measured, verdicts: dict[str, CandidateVerdicts]
) -> Iterator[Timing]:
    """Yield the timing of each candidate on one entry."""
    for sample in measured.samples:
        assert sample.costs is not None
        judged = verdicts[sample.name]
        yield Timing(
            operation=entry.operation.name,
            section=entry.operation.section,
            candidate=sample.name,
            lane=judged.lane,
            workload=entry.workload,
            case_id=entry.case.id,
            deviations=judged.deviations_on(entry.case),
            calls=sample.calls,
            host_ns=[round(ns, 1) for ns in sample.host_ns],
            device_ns=[round(ns, 1) for ns in sample.device_ns],
            host=interval(sample.host_ns),
            device=interval(sample.device_ns) if sample.device_ns else None,
            costs=sample.costs,
            work=measured.work,
        )


def comparisons(
    entry: Entry, measured: Measured, peers: Sequence[str], noise: Noise
) -> Iterator[Comparison]:
    """Compare each candidate with each peer, per clock."""
    own = [sample for sample in measured.samples if sample.name not in peers]
    others = {sample.name: sample for sample in measured.samples if sample.name in peers}
    for sample, peer in product(own, peers):
        if peer not in others:
            continue
        other = others[peer]
        times: list[tuple[Clock, list[float], list[float]]] = [
            ("host", sample.host_ns, other.host_ns),
            ("device", sample.device_ns, other.device_ns),
        ]
        for clock, mine, theirs in times:
            if mine and theirs:
                yield _compared(
                    entry, sample.name, peer, clock, mine, theirs, noise, paired=measured.together
                )


def _compared(
    entry: Entry,
    name: str,
    peer: str,
    clock: Clock,
    samples: list[float],
    others: list[float],
    noise: Noise,
    *,
    paired: bool,
) -> Comparison:
    quotient, low, high = ratio(samples, others, paired=paired)
    p_value = mann_whitney(samples, others)
    return Comparison(
        operation=entry.operation.name,
        workload=entry.workload.name,
        candidate=name,
        peer=peer,
        clock=clock,
        ratio=quotient,
        low=low,
        high=high,
        p_value=p_value,
        verdict=verdict(quotient, low, high, p_value, noise),
    )
