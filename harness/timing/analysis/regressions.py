"""Compare a run with a baseline: slower timings, grown counts, timings that are missing.

Times are compared in units of the control's time, so that a machine that is slower today
does not look like a slower function. With a baseline of another machine only exact counts
are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import msgspec

from attnproof.harness.model.run import Environment
from attnproof.harness.model.timing import (
    BaselineResult,
    Bench,
    Clock,
    Comparison,
    Costs,
    Noise,
    Regression,
    Speed,
)
from attnproof.harness.timing.analysis.baseline import (
    Baseline,
    BaselineError,
    Entry,
    KeptSteps,
    control_of,
    differences,
    entry_of,
    kept,
    load,
    machine_of,
)
from attnproof.harness.timing.plan.timetable import STEP
from attnproof.harness.timing.statistics import mann_whitney, mean_ratio, ratio, verdict

_Kept = TypeVar("_Kept")
BETWEEN_RUNS = 0.10
"""Smallest relative difference between two runs that is worth a verdict.

Ten processes that timed the same functions of 4 and 30 µs differed by up to 7 %, because
of other memory addresses; no measurement inside one process shows that.
"""


def against(
    path: Path, bench: Bench, environment: Environment, asked: Container[str]
) -> BaselineResult:
    """Compare the run with the baseline in a file, which may be missing or damaged.

    A timing that only the baseline has is lost if its operation is among the `asked` ones.
    """
    try:
        baseline = load(path)
    except BaselineError as error:
        return BaselineResult(name=path.stem, state=error.state, reason=str(error))
    return compare(bench, environment, baseline, asked)


def compare(
    bench: Bench, environment: Environment, baseline: Baseline, asked: Container[str]
) -> BaselineResult:
    """Compare every timing that both have; on another machine only the exact counts.

    Counts of another PyTorch are not compared: it dispatches other operators.
    """
    other = differences(baseline.machine, machine_of(environment))
    sides = _Sides(
        control_of(baseline.control_ns),
        control_of(bench.control_ns),
        _noise(baseline.noise, bench.noise),
        timed=not other,
        counted=baseline.machine.torch == environment.torch,
    )
    entries = {entry.key: entry for entry in map(entry_of, bench.timings)}
    steps = {step.key: step for step in map(kept, bench.steps)}
    regressions: list[Regression] = []
    lost: list[str] = []
    for old in baseline.entries:
        if old.key in entries:
            regressions += _compared_entry(old, entries[old.key], sides)
        elif old.operation in asked:
            lost.append(old.label)
    for before in baseline.steps:
        now = steps.get(before.key)
        missing = before.samples.keys() - (now.samples if now else {})
        if now and len(missing) < len(before.samples):
            regressions += _compared_steps(before, now, sides)
        if missing and all(operation in asked for operation in before.operations):
            some = f", {len(missing)} of {len(before.samples)} steps" if now else ""
            lost.append(f"{before.label}{some}")
    reason = f"baseline {baseline.name} is of another machine: {'; '.join(other)}" if other else ""
    return BaselineResult(
        name=baseline.name,
        state="another machine" if other else "compared",
        reason=reason,
        created=baseline.created,
        regressions=regressions,
        lost=sorted(lost),
        control=1.0 if other else sides.control_now / sides.control_before,
    )


def slower(result: BaselineResult) -> list[Regression]:
    """Return the timings that look slower than the baseline's."""
    return [regression for regression in result.regressions if regression.verdict == "slower"]


def confirm(bench: Bench, again: Bench) -> Bench:
    """Return `bench` with the results of `again` for workloads that are not slower there.

    One timing of a hundred looks slower because of the state of the machine. A workload is
    replaced, for all candidates, if `again` confirms none of its suspects: each differs from
    the baseline by less than the smallest difference worth a verdict. Grown counts are kept.
    """
    first, second = bench.baseline, again.baseline
    least = 1 + max(BETWEEN_RUNS, bench.noise.floor)
    ratios = {_name(regression): regression.ratio for regression in second.regressions}
    suspects = slower(first)
    confirmed = {_place(r) for r in suspects if ratios.get(_name(r), r.ratio) >= least}
    refuted = {_place(r) for r in suspects} - confirmed

    def merged(
        old: list[_Kept], new: list[_Kept], name: Callable[[_Kept], tuple[str, ...]]
    ) -> list[_Kept]:
        replacements = {name(entry): entry for entry in new if name(entry)[:2] in refuted}
        return [replacements.get(name(entry), entry) for entry in old]

    costs = {_name(regression): regression.costs for regression in first.regressions}
    regressions = [
        msgspec.structs.replace(r, costs=r.costs or costs[_name(r)])
        for r in merged(first.regressions, second.regressions, _name)
    ]
    return msgspec.structs.replace(
        bench,
        timings=merged(
            bench.timings, again.timings, lambda t: (t.operation, t.workload.name, t.candidate)
        ),
        comparisons=merged(bench.comparisons, again.comparisons, _name),
        steps=merged(bench.steps, again.steps, lambda s: (STEP, s.trace, s.candidate)),
        step_comparisons=merged(
            bench.step_comparisons,
            again.step_comparisons,
            lambda c: (STEP, c.trace, c.candidate),
        ),
        baseline=msgspec.structs.replace(
            first,
            regressions=regressions,
            not_confirmed=first.not_confirmed + sum(_place(r) in refuted for r in suspects),
        ),
    )


def _place(regression: Regression) -> tuple[str, str]:
    return regression.operation, regression.workload


def _name(compared: Regression | Comparison) -> tuple[str, ...]:
    return compared.operation, compared.workload, compared.candidate, compared.clock


class _Sides(NamedTuple):
    """Properties of the baseline and of the run that hold for all their timings."""

    control_before: float
    control_now: float
    noise: Noise
    timed: bool
    """True if times can be compared."""
    counted: bool
    """True if exact counts can be compared."""


def _noise(before: Noise, now: Noise) -> Noise:
    """Return the larger of both runs' floors and of both minimum effects."""
    return msgspec.structs.replace(
        now,
        floor=max(before.floor, now.floor),
        minimum_effect=max(BETWEEN_RUNS, before.minimum_effect, now.minimum_effect),
    )


def _compared_entry(old: Entry, new: Entry, sides: _Sides) -> Iterator[Regression]:
    """Compare one timing per clock; grown counts are reported with the host's clock."""
    grown = grown_costs(old.costs, new.costs) if sides.counted else ""
    if sides.timed or grown:
        before = [ns / sides.control_before for ns in old.host_ns]
        now = [ns / sides.control_now for ns in new.host_ns]
        yield _regression(new, "host", before, now, sides, grown)
    # Device times are not in units of the control, which is work of the host.
    if sides.timed and old.device_ns and new.device_ns:
        yield _regression(new, "device", old.device_ns, new.device_ns, sides, "")


def _compared_steps(old: KeptSteps, new: KeptSteps, sides: _Sides) -> Iterator[Regression]:
    """Compare by the geometric mean of the ratios of the engine steps that both have."""
    if not sides.timed:
        return
    ratios: list[float] = []
    before: list[float] = []
    now: list[float] = []
    for step, samples in old.samples.items():
        if step in new.samples:
            usual = median(samples) / sides.control_before
            before += [ns / sides.control_before / usual for ns in samples]
            now += [ns / sides.control_now / usual for ns in new.samples[step]]
            ratios.append(median(new.samples[step]) / sides.control_now / usual)
    yield _judged(old, "host", mean_ratio(ratios), mann_whitney(before, now), sides, "")


def _regression(
    entry: Entry, clock: Clock, before: list[float], now: list[float], sides: _Sides, grown: str
) -> Regression:
    ratios = ratio(before, now, paired=False)  # above 1: it takes longer now
    return _judged(entry, clock, ratios, mann_whitney(before, now), sides, grown)


def _judged(
    entry: Entry | KeptSteps,
    clock: Clock,
    ratios: tuple[float, float, float],
    p_value: float,
    sides: _Sides,
    grown: str,
) -> Regression:
    value, low, high = ratios
    speed: Speed = "no evidence"
    if sides.timed:
        speed = verdict(1 / value, 1 / high, 1 / low, p_value, sides.noise)
    return Regression(
        operation=entry.operation,
        workload=entry.workload,
        candidate=entry.candidate,
        clock=clock,
        ratio=value,
        low=low,
        high=high,
        p_value=p_value,
        verdict=speed,
        costs=grown,
    )


def grown_costs(old: Costs, new: Costs) -> str:
    """Return the exact counts that grew, such as "allocations 3 to 4", "" if none did."""
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in Costs.__struct_fields__]
    return ", ".join(
        f"{name.replace('_', ' ')} {was} to {now}"
        for name, was, now in pairs
        if was is not None and now is not None and now > was
    )
