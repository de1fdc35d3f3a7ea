"""Tables per operation: a row per workload, the costs of a call; the conditions of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.timing import Bench, Clock, Comparison, Costs, Speed
from attnproof.harness.report.charts.figure import Chart, Table
from attnproof.harness.report.charts.growth import growth
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
from attnproof.harness.report.shared.timings import CLOCKS, TimingRow, timing_rows
from attnproof.harness.report.shared.wording import many
from attnproof.harness.timing.process.copying import LEAST_BYTES

_CHART, _ROW, _RATE = 3_400, 225, 180
"""Approximate bytes of a chart, of a row and of a row of rates."""


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
    """One operation: its charts, timings and costs, folded below its name."""

    name: str
    section: str
    sentence: str
    charts: tuple[Chart, ...]
    caption: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    costs: Table
    rates: Table | None
    """None if no rate is known."""


class Parts(NamedTuple):
    """Operations on the page, and the names of those left out for their size."""

    shown: tuple[OperationPart, ...]
    left_out: tuple[str, ...]


def operation_parts(bench: Bench, prefix: str, room: int) -> Parts:
    """Return the operations, the slowest against the first pair's peer first, in `room` bytes."""
    timings: dict[str, list[TimingRow]] = {}
    for row in timing_rows(bench):
        timings.setdefault(row.operation, []).append(row)
    gathered: dict[str, list[Gathered]] = {}
    for pair in pairs(bench):
        for entry in by_operation(bench, pair):
            gathered.setdefault(entry.operation, []).append(entry)
    shown: list[OperationPart] = []
    left_out = []
    used = 0
    for name in dict.fromkeys([*gathered, *timings]):
        used += _CHART + _ROW * len({row.workload for row in timings.get(name, [])})
        used += _RATE * sum(row.rate is not None for row in timings.get(name, []))
        if used > room:
            left_out.append(name)
            continue
        key = f"{prefix}{len(shown) + 1}"
        shown.append(_part(name, timings.get(name, []), gathered.get(name, []), key))
    return Parts(tuple(shown), tuple(left_out))


def conditions(bench: Bench) -> Table:
    """Return the noise, the clock and the control of the run."""
    noise = bench.noise
    seen = drift(bench.control_ns)
    declared = f"{noise.declared:,} of {many(noise.comparisons, 'comparison')}"
    rows = [
        ("Noise floor", f"{percent(noise.floor)}: a smaller difference may be noise"),
        (
            "Minimum effect",
            f"{percent(noise.minimum_effect)}: a smaller difference gets no verdict",
        ),
        ("Function against itself", f"{declared} called faster or slower before the floor"),
        ("Resolution of the clock", time_text(noise.clock_resolution_ns)),
        ("Control", drift_text(seen) if seen else "too few samples to compute its drift"),
        ("Timed for", f"{bench.seconds:,.0f} s, {many(len(bench.timings), 'timing')}"),
    ]
    return Table("Precision of these numbers", ("Condition", "In this run"), tuple(rows))


def _part(name: str, timings: list[TimingRow], gathered: list[Gathered], key: str) -> OperationPart:
    candidates = list(dict.fromkeys(row.candidate for row in timings))
    clocks = [clock for clock in CLOCKS if any(row.clock == clock for row in timings)]
    compared_pairs = [entry.pair for entry in gathered]
    columns = [(candidate, clock) for clock in clocks for candidate in candidates]
    samples = {row.interval.samples for row in timings if row.clock == "host"}
    return OperationPart(
        name=name,
        section=timings[0].timing.section if timings else "",
        sentence="; ".join(_sentence(entry, len(gathered) > 1) for entry in gathered),
        charts=tuple(growth(timings, candidates, clock, f"{key}-{clock}") for clock in clocks),
        caption=f"Medians with bootstrap 95 % intervals{_uniform(samples)}; host time"
        + (" and device time." if len(clocks) > 1 else "."),
        head=_head(columns, compared_pairs, len(clocks) > 1, len(samples) > 1),
        rows=tuple(_rows(timings, compared_pairs, columns, len(samples) > 1)),
        costs=_costs(timings, candidates),
        rates=_rates(timings),
    )


def _sentence(entry: Gathered, named: bool) -> str:
    against = f"against {entry.pair.peer} ({entry.pair.clock}) " if named else ""
    return (
        f"{against}{ratio_text(entry.geometric_mean)} as fast, at worst "
        f"{ratio_text(entry.worst.ratio)} ({entry.worst.workload}); {counts_text(entry.counts)}"
    )


def _uniform(samples: set[int]) -> str:
    return f", n = {next(iter(samples)):,} samples each" if len(samples) == 1 else ""


def _head(
    columns: Sequence[tuple[str, Clock]], compared_pairs: Sequence[Pair], both: bool, varied: bool
) -> tuple[str, ...]:
    def clock(name: str) -> str:
        return f", {name}" if both else ""

    single = len(compared_pairs) == 1
    names = [f"{candidate}{clock(name)}" for candidate, name in columns]
    for pair in compared_pairs:
        which = "" if single else f" {pair.candidate} to {pair.peer}{clock(pair.clock)}"
        names += [f"Times as fast{which}", f"Verdict{which}"]
    return ("Workload", *names, *(("n",) if varied else ()))


def _rows(
    timings: list[TimingRow],
    compared_pairs: Sequence[Pair],
    columns: Sequence[tuple[str, Clock]],
    varied: bool,
) -> list[Row]:
    """Return a row per workload: times, then ratio and verdict per pair, then samples if varied."""
    by_workload: dict[str, dict[tuple[str, Clock], TimingRow]] = {}
    for row in timings:
        by_workload.setdefault(row.workload, {})[row.candidate, row.clock] = row
    rows = []
    for workload, mine in by_workload.items():
        cells = [_time(mine.get(column)) for column in columns]
        for pair in compared_pairs:
            own = mine.get((pair.candidate, pair.clock))
            of_peer = (c for c in own.comparisons if c.peer == pair.peer) if own else iter(())
            cells += _verdict(next(of_peer, None))
        if varied:
            counts = sorted({row.timing.host.samples for row in mine.values()})
            # The smallest and the largest count, or the only one.
            ends = counts[:: len(counts) - 1 or 1]
            cells.append(Cell(" to ".join(f"{count:,}" for count in ends)))
        rows.append(Row(workload, tuple(cells)))
    return rows


def _time(row: TimingRow | None) -> Cell:
    if row is None:
        return Cell("not timed")
    return Cell(time_text(row.interval.median_ns), interval_text(row.interval))


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


def _costs(timings: list[TimingRow], candidates: list[str]) -> Table:
    """Return the exact counts of a call, a column per candidate; omit those that no timing has."""
    costs = {
        candidate: [row.timing.costs for row in timings if row.candidate == candidate]
        for candidate in candidates
    }
    rows = tuple(
        (name, *(_range([of(cost) for cost in mine], text) for mine in costs.values()))
        for name, of, text in _COSTS
        if any(of(row.timing.costs) is not None for row in timings)
    )
    head = ("Count", *map(escape_line, candidates))
    return Table("Costs of one call, least to most over the workloads", head, rows)


def _rates(timings: list[TimingRow]) -> Table | None:
    """Return the bytes and operations a second of each workload."""
    several = len({row.clock for row in timings}) > 1
    rows = tuple(
        (
            row.workload,
            escape_line(row.candidate) + (f", {row.clock}" if several else ""),
            bytes_text(rate.bytes),
            rate.text,
        )
        for row in timings
        if (rate := row.rate)
    )
    head = ("Workload", "Candidate", "Bytes of a call", "Rate")
    least = f"{LEAST_BYTES >> 10} KiB"
    caption = f"Bandwidth beside a copy by torch of as many bytes, and arithmetic; from {least} on"
    return Table(caption, head, rows) if rows else None


def _range(counts: list[int | None], text: Callable[[float], str]) -> str:
    known = [count for count in counts if count is not None]
    if not known:
        return "n/a"
    low, high = min(known), max(known)
    return text(low) if low == high else f"{text(low)} to {text(high)}"
