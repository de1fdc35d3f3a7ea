"""Per operation, every workload as a row; what a call costs; the conditions of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnproof.harness.model.timing import Bench, Clock, Comparison, Costs, Interval, Speed, Timing
from attnproof.harness.report.charts.figure import Chart, Table
from attnproof.harness.report.charts.growth import growth, interval_of
from attnproof.harness.report.charts.samples import drift_text
from attnproof.harness.report.shared.quantities import (
    SPEED_GLYPHS,
    between,
    bytes_text,
    interval_text,
    percent,
    ratio_text,
    time_text,
)
from attnproof.harness.report.shared.ratios import (
    Gathered,
    Pair,
    by_operation,
    counts_text,
    drift,
    pairs,
)
from attnproof.harness.report.shared.wording import clean, many

_CHART, _ROW = 3_400, 225
"""Bytes that a chart and a row take, about."""


class Cell(NamedTuple):
    """A number with its interval, or a verdict."""

    value: str
    interval: str = ""
    speed: str = ""


class Row(NamedTuple):
    """One workload."""

    name: str
    cells: tuple[Cell, ...]


class OperationPart(NamedTuple):
    """One operation, folded away below its name."""

    name: str
    section: str
    sentence: str
    charts: tuple[Chart, ...]
    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    costs: Table


class Parts(NamedTuple):
    """All operations that fit, and those that do not."""

    shown: tuple[OperationPart, ...]
    left_out: tuple[str, ...]


def operation_parts(bench: Bench, prefix: str, room: int) -> Parts:
    """The operations by the first pair's ratios, the slowest first, as far as `room` bytes go."""
    timings: dict[str, list[Timing]] = {}
    for timing in bench.timings:
        timings.setdefault(timing.operation, []).append(timing)
    gathered: dict[str, list[Gathered]] = {}
    for pair in pairs(bench):
        for entry in by_operation(bench, pair):
            gathered.setdefault(entry.operation, []).append(entry)
    shown: list[OperationPart] = []
    left_out = []
    used = 0
    for name in dict.fromkeys([*gathered, *timings]):
        used += _CHART + _ROW * len({t.workload.name for t in timings.get(name, [])})
        if used > room:
            left_out.append(name)
            continue
        key = f"{prefix}{len(shown) + 1}"
        shown.append(_part(name, timings.get(name, []), gathered.get(name, []), key))
    return Parts(tuple(shown), tuple(left_out))


def conditions(bench: Bench) -> Table:
    """What the run says about the machine that it was made on."""
    noise = bench.noise
    seen = drift(bench.control_ns)
    declared = f"{noise.declared:,} of {many(noise.comparisons, 'comparison')}"
    rows = [
        ("Noise floor", f"{percent(noise.floor)}: smaller differences can't be told from noise"),
        ("Minimum effect", f"{percent(noise.minimum_effect)}: smaller ones get no verdict"),
        ("The same against itself", f"{declared} called faster or slower before the floor"),
        ("Resolution of the clock", time_text(noise.clock_resolution_ns)),
        ("Control", drift_text(seen) if seen else "too few samples to tell of drift"),
        ("Timed for", f"{bench.seconds:,.0f} s, {many(len(bench.timings), 'timing')}"),
    ]
    return Table("What these numbers can tell apart", ("Condition", "In this run"), tuple(rows))


def _part(name: str, timings: list[Timing], gathered: list[Gathered], key: str) -> OperationPart:
    candidates = list(dict.fromkeys(timing.candidate for timing in timings))
    clocks: list[Clock] = ["host"]
    if any(timing.device for timing in timings):
        clocks.append("device")
    found = [entry.pair for entry in gathered]
    columns = [(candidate, clock) for clock in clocks for candidate in candidates]
    samples = {interval.samples for t in timings if (interval := interval_of(t, "host"))}
    return OperationPart(
        name=name,
        section=timings[0].section if timings else "",
        sentence="; ".join(_sentence(entry, len(gathered) > 1) for entry in gathered),
        charts=tuple(growth(timings, candidates, clock, f"{key}-{clock}") for clock in clocks),
        caption=f"Medians with bootstrap 95 % intervals{_uniform(samples)}; host time"
        + (" and device time." if len(clocks) > 1 else "."),
        head=_head(columns, found, len(clocks) > 1, len(samples) > 1),
        rows=tuple(_rows(timings, gathered, columns, len(samples) > 1)),
        costs=_costs(timings, candidates),
    )


def _sentence(entry: Gathered, named: bool) -> str:
    who = f"against {entry.pair.peer} ({entry.pair.clock}) " if named else ""
    return (
        f"{who}{ratio_text(entry.geometric_mean)} as fast, at worst "
        f"{ratio_text(entry.worst.ratio)} ({entry.worst.workload}); {counts_text(entry.counts)}"
    )


def _uniform(samples: set[int]) -> str:
    return f", n = {next(iter(samples)):,} samples each" if len(samples) == 1 else ""


def _head(
    columns: Sequence[tuple[str, Clock]], found: Sequence[Pair], both: bool, varied: bool
) -> tuple[str, ...]:
    def clock(name: str) -> str:
        return f", {name}" if both else ""

    single = len(found) == 1
    names = [f"{candidate}{clock(name)}" for candidate, name in columns]
    for pair in found:
        who = "" if single else f" {pair.candidate} to {pair.peer}{clock(pair.clock)}"
        names += [f"Times as fast{who}", f"Verdict{who}"]
    return ("Workload", *names, *(("n",) if varied else ()))


def _rows(
    timings: list[Timing],
    gathered: list[Gathered],
    columns: Sequence[tuple[str, Clock]],
    varied: bool,
) -> list[Row]:
    by_workload: dict[str, dict[str, Timing]] = {}
    for timing in timings:
        by_workload.setdefault(timing.workload.name, {})[timing.candidate] = timing
    ratios = [{c.workload: c for c in entry.comparisons} for entry in gathered]
    rows = []
    for workload, mine in by_workload.items():
        cells = [_time(mine.get(candidate), clock) for candidate, clock in columns]
        for found in ratios:
            cells += _verdict(found.get(workload))
        if varied:
            counts = sorted({timing.host.samples for timing in mine.values()})
            cells.append(
                Cell(" to ".join(f"{count:,}" for count in counts[:: len(counts) - 1 or 1]))
            )
        rows.append(Row(workload, tuple(cells)))
    return rows


def _time(timing: Timing | None, clock: Clock) -> Cell:
    interval: Interval | None = interval_of(timing, clock) if timing else None
    if interval is None:
        return Cell("not timed")
    return Cell(time_text(interval.median_ns), interval_text(interval))


def _verdict(comparison: Comparison | None) -> list[Cell]:
    if comparison is None:
        return [Cell("not compared"), Cell("")]
    speed: Speed = comparison.verdict
    ratio = Cell(ratio_text(comparison.ratio), between(comparison.low, comparison.high))
    return [ratio, Cell(f"{SPEED_GLYPHS[speed]} {speed}", speed=speed)]


def _plain(count: float) -> str:
    return f"{count:,.0f}"


_COSTS: tuple[tuple[str, Callable[[Costs], int | None], Callable[[float], str]], ...] = (
    ("Launches", lambda costs: costs.launches, _plain),
    ("Syncs", lambda costs: costs.syncs, _plain),
    ("Allocations", lambda costs: costs.allocations, _plain),
    ("Bytes allocated", lambda costs: costs.allocated_bytes, bytes_text),
    ("Dispatches", lambda costs: costs.dispatches, _plain),
    ("Copies", lambda costs: costs.copies, _plain),
    ("Bytes copied", lambda costs: costs.copied_bytes, bytes_text),
)


def _costs(timings: list[Timing], candidates: list[str]) -> Table:
    """Exact counts of one call, least to most; without those that no lane here can see."""
    seen = [cost for cost in _COSTS if any(cost[1](t.costs) is not None for t in timings)]
    rows = []
    for candidate in candidates:
        mine = [timing.costs for timing in timings if timing.candidate == candidate]
        cells = (_range([of(costs) for costs in mine], say) for _, of, say in seen)
        rows.append((clean(candidate), *cells))
    names = tuple(name for name, _, _ in seen)
    return Table(
        "What one call costs, least to most over the workloads", ("Candidate", *names), tuple(rows)
    )


def _range(counts: list[int | None], say: Callable[[float], str]) -> str:
    known = [count for count in counts if count is not None]
    if not known:
        return "n/a"
    low, high = min(known), max(known)
    return say(low) if low == high else f"{say(low)} to {say(high)}"
