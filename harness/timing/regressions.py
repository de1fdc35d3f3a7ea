"""A run beside a baseline: what is slower, costs more, or is not timed any more.

Times are compared in units of the control's, so that a machine that is slower today is
not taken for a slower function. Those of another machine say nothing; exact counts do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from harness.model.run import Environment
from harness.model.timing import BaselineResult, Bench, Clock, Costs, Noise, Regression, Speed
from harness.timing.baseline import (
    Baseline,
    BaselineError,
    Entry,
    StepsEntry,
    control_of,
    differences,
    entry_of,
    load,
    machine_of,
    steps_entry_of,
)
from harness.timing.statistics import mann_whitney, ratio, verdict

BETWEEN_RUNS = 0.10
"""Smallest relative difference between two runs that is worth a verdict.

Ten processes that timed the same functions of 4 and 30 µs differed by up to 7 %, for where
their memory happened to lie; no measurement inside one of them shows that.
"""


def against(path: Path, bench: Bench, environment: Environment) -> BaselineResult:
    """The run beside the baseline in a file, whatever state the file is in."""
    try:
        baseline = load(path)
    except BaselineError as error:
        return BaselineResult(name=path.stem, state=error.state, reason=str(error))
    return compare(bench, environment, baseline)


def compare(bench: Bench, environment: Environment, baseline: Baseline) -> BaselineResult:
    """Every timing that both have; on another machine those alone whose exact counts grew.

    With another PyTorch counts are not compared either: its operators are made of others.
    """
    other = differences(baseline.machine, machine_of(environment))
    old = {entry.key: entry for entry in baseline.entries}
    new = {entry.key: entry for entry in map(entry_of, bench.timings)}
    old_steps = {entry.key: entry for entry in baseline.steps}
    new_steps = {of.key: of for of in map(steps_entry_of, bench.steps) if of.steps}
    sides = _Sides(
        control_of(baseline.control_ns),
        control_of(bench.control_ns),
        _noise(baseline.noise, bench.noise),
        timed=not other,
        counted=baseline.machine.torch == environment.torch,
    )
    return BaselineResult(
        name=baseline.name,
        state="another machine" if other else "compared",
        reason=f"baseline {baseline.name} is of another machine: {'; '.join(other)}"
        if other
        else "",
        created=baseline.created,
        regressions=[
            *(
                found
                for key, entry in new.items()
                if key in old
                for found in _beside(old[key], entry, sides)
            ),
            *(
                found
                for key, entry in new_steps.items()
                if key in old_steps
                for found in _steps_beside(old_steps[key], entry, sides)
            ),
        ],
        lost=sorted(
            [entry.label for key, entry in old.items() if key not in new]
            + [entry.label for key, entry in old_steps.items() if key not in new_steps]
        ),
    )


def slower(result: BaselineResult) -> list[Regression]:
    """Timings that look slower than the baseline's."""
    return [found for found in result.regressions if found.verdict == "slower"]


def confirm(result: BaselineResult, again: BaselineResult) -> None:
    """Leave slower what is slower in `again` too; of the rest, that is what counts.

    One timing of a hundred looks slower for what the machine did just then.
    """
    calm = {_name(found): found for found in again.regressions if found.verdict != "slower"}
    for place, found in enumerate(result.regressions):
        if found.verdict == "slower" and _name(found) in calm:
            result.regressions[place] = calm[_name(found)]
            result.not_confirmed += 1


def _name(found: Regression) -> tuple[str, str, str, str]:
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


def _steps_beside(old: StepsEntry, new: StepsEntry, sides: _Sides) -> Iterator[Regression]:
    """The steps that both have, all at once: each in units of what it took before."""
    before: list[float] = []
    now: list[float] = []
    for step, samples in old.samples.items():
        if step in new.samples:
            usual = median(samples)
            before += [ns / usual / sides.control_before for ns in samples]
            now += [ns / usual / sides.control_now for ns in new.samples[step]]
    if sides.timed and before:
        yield _regression(new, "host", before, now, sides, "")


def _regression(
    entry: Entry | StepsEntry,
    clock: Clock,
    before: list[float],
    now: list[float],
    sides: _Sides,
    grown: str,
) -> Regression:
    value, low, high = ratio(before, now, paired=False)  # above 1: it takes longer now
    p_value = mann_whitney(before, now)
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
