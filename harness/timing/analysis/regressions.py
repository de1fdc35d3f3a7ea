"""A run beside a baseline: what is slower, costs more, or is not timed any more.

Times are compared in units of the control's, so that a machine that is slower today is
not taken for a slower function. Those of another machine say nothing; exact counts do.
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

Ten processes that timed the same functions of 4 and 30 µs differed by up to 7 %, for where
their memory happened to lie; no measurement inside one of them shows that.
"""


def against(
    path: Path, bench: Bench, environment: Environment, asked: Container[str]
) -> BaselineResult:
    """The run beside the baseline in a file, whatever state the file is in.

    Of what only the baseline has, operations that nobody `asked` for are not lost.
    """
    try:
        baseline = load(path)
    except BaselineError as error:
        return BaselineResult(name=path.stem, state=error.state, reason=str(error))
    return compare(bench, environment, baseline, asked)


def compare(
    bench: Bench, environment: Environment, baseline: Baseline, asked: Container[str]
) -> BaselineResult:
    """Every timing that both have; on another machine those alone whose exact counts grew.

    With another PyTorch counts are not compared either: its operators are made of others.
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
    steps = {of.key: of for of in map(kept, bench.steps)}
    result = BaselineResult(
        name=baseline.name,
        state="another machine" if other else "compared",
        reason=f"baseline {baseline.name} is of another machine: {'; '.join(other)}"
        if other
        else "",
        created=baseline.created,
        control=1.0 if other else sides.control_now / sides.control_before,
    )
    for old in baseline.entries:
        if old.key in entries:
            result.regressions += _beside(old, entries[old.key], sides)
        elif old.operation in asked:
            result.lost.append(old.label)
    for before in baseline.steps:
        now = steps.get(before.key)
        missing = before.samples.keys() - (now.samples if now else {})
        if now and len(missing) < len(before.samples):
            result.regressions += _steps_beside(before, now, sides)
        if missing and all(operation in asked for operation in before.operations):
            some = f", {len(missing)} of {len(before.samples)} steps" if now else ""
            result.lost.append(f"{before.label}{some}")
    result.lost.sort()
    return result


def slower(result: BaselineResult) -> list[Regression]:
    """Timings that look slower than the baseline's."""
    return [found for found in result.regressions if found.verdict == "slower"]


def confirm(bench: Bench, again: Bench) -> None:
    """Take what `again` has of a workload on which nothing that looked slower does so there.

    One timing of a hundred looks slower for what the machine did just then. It is no
    evidence any more if the next one finds less than what is worth a verdict, and then that
    one stands in its place for all candidates. Exact counts that grew stay grown.
    """
    first, second = bench.baseline, again.baseline
    least = 1 + max(BETWEEN_RUNS, bench.noise.floor)
    ratios = {_name(found): found.ratio for found in second.regressions}
    suspects = slower(first)
    stay = {_place(r) for r in suspects if ratios.get(_name(r), r.ratio) >= least}
    calm = {_place(r) for r in suspects} - stay
    first.not_confirmed += sum(_place(r) in calm for r in suspects)

    def put(old: list[_Kept], new: list[_Kept], name: Callable[[_Kept], tuple[str, ...]]) -> None:
        found = {name(one): one for one in new if name(one)[:2] in calm}
        old[:] = [found.get(name(one), one) for one in old]

    costs = {_name(found): found.costs for found in first.regressions}
    put(first.regressions, second.regressions, _name)
    first.regressions[:] = [
        msgspec.structs.replace(r, costs=r.costs or costs[_name(r)]) for r in first.regressions
    ]
    put(bench.timings, again.timings, lambda t: (t.operation, t.workload.name, t.candidate))
    put(bench.comparisons, again.comparisons, _name)
    put(bench.steps, again.steps, lambda s: (STEP, s.trace, s.candidate))
    put(bench.step_comparisons, again.step_comparisons, lambda c: (STEP, c.trace, c.candidate))


def _place(found: Regression) -> tuple[str, str]:
    return found.operation, found.workload


def _name(found: Regression | Comparison) -> tuple[str, ...]:
    return found.operation, found.workload, found.candidate, found.clock


class _Sides(NamedTuple):
    """What holds for all timings of the baseline and of the run."""

    control_before: float
    control_now: float
    noise: Noise
    timed: bool
    """Whether times can be compared."""
    counted: bool
    """Whether exact counts can be compared."""


def _noise(before: Noise, now: Noise) -> Noise:
    """The larger of both runs' floors and of what is worth a verdict."""
    return msgspec.structs.replace(
        now,
        floor=max(before.floor, now.floor),
        minimum_effect=max(BETWEEN_RUNS, before.minimum_effect, now.minimum_effect),
    )


def _beside(old: Entry, new: Entry, sides: _Sides) -> Iterator[Regression]:
    """One timing's clocks; exact counts stand beside the host's."""
    grown = grown_costs(old.costs, new.costs) if sides.counted else ""
    if sides.timed or grown:
        before = [ns / sides.control_before for ns in old.host_ns]
        now = [ns / sides.control_now for ns in new.host_ns]
        yield _regression(new, "host", before, now, sides, grown)
    if sides.timed and old.device_ns and new.device_ns:  # the control is work of the host
        yield _regression(new, "device", old.device_ns, new.device_ns, sides, "")


def _steps_beside(old: KeptSteps, new: KeptSteps, sides: _Sides) -> Iterator[Regression]:
    """The geometric mean of the ratios of the steps that both have."""
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
    found = ratio(before, now, paired=False)  # above 1: it takes longer now
    return _judged(entry, clock, found, mann_whitney(before, now), sides, grown)


def _judged(
    entry: Entry | KeptSteps,
    clock: Clock,
    found: tuple[float, float, float],
    p_value: float,
    sides: _Sides,
    grown: str,
) -> Regression:
    value, low, high = found
    said: Speed = "no evidence"
    if sides.timed:
        said = verdict(1 / value, 1 / high, 1 / low, p_value, sides.noise)
    return Regression(
        operation=entry.operation,
        workload=entry.workload,
        candidate=entry.candidate,
        clock=clock,
        ratio=value,
        low=low,
        high=high,
        p_value=p_value,
        verdict=said,
        costs=grown,
    )


def grown_costs(old: Costs, new: Costs) -> str:
    """Which exact counts are larger than they were, such as "allocations 3 to 4", or ""."""
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in Costs.__struct_fields__]
    return ", ".join(
        f"{name.replace('_', ' ')} {was} to {now}"
        for name, was, now in pairs
        if was is not None and now is not None and now > was
    )
