"""The roofline: arithmetic a second against the operations for each byte that a call moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attnproof.harness.model.timing import Bench, MachineRates
from attnproof.harness.report.charts.figure import (
    Chart,
    Table,
    legend,
    legend_width,
    level,
    log_axis,
    marks,
    upright,
)
from attnproof.harness.report.pictures.svg import Markup, picture, tag, text
from attnproof.harness.report.shared.quantities import digits, percent
from attnproof.harness.report.shared.timings import TimingRow, timing_rows
from attnproof.harness.report.shared.wording import listed

_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 360.0, 48.0, 218.0
_READING = (
    "Both axes are logarithmic. The slope is what the memory allows, measured by a large copy; the "
    "level part what the arithmetic allows, measured by a large product of matrices; both by torch "
    "in this run. A mark is a workload. The nearer it is to the line above it, the less is left "
    "to gain; data that a cache holds may lift a mark above the slope."
)


class _Mark(NamedTuple):
    """One workload of one candidate."""

    row: TimingRow
    machine: MachineRates
    intensity: float
    """Floating-point operations for each byte."""
    flops_per_ns: float

    @property
    def share(self) -> float:
        """Its rate divided by what memory and arithmetic allow."""
        return self.flops_per_ns / _bound(self.machine, self.intensity)


def roofline(bench: Bench, key: str) -> Chart | None:
    """Return the workloads whose arithmetic is counted, None without any.

    By the device's clock if there is one, which does not count launches.
    """
    rows = timing_rows(bench)
    shown = _marks(rows, "device") or _marks(rows, "host")
    if not shown:
        return None
    title = f"Roofline, by the {shown[0].row.clock}'s clock"
    candidates = list(dict.fromkeys(mark.row.candidate for mark in shown))
    words = listed([_words(name, shown) for name in candidates])
    head = ("Candidate", "Operation", "Workload", "FLOP a byte", "GFLOP/s", "Of the line")
    cells = tuple(
        (
            mark.row.candidate,
            mark.row.operation,
            mark.row.workload,
            digits(mark.intensity),
            digits(mark.flops_per_ns),
            percent(mark.share),
        )
        for mark in shown
    )
    drawn = _draw(shown, candidates, title, words, key)
    return Chart(key, title, f"{words}.", drawn, _READING, Table(title, head, cells))


def _marks(rows: Sequence[TimingRow], clock: str) -> list[_Mark]:
    return [
        _Mark(row, work.machine, work.flops / work.bytes, work.flops / row.interval.median_ns)
        for row in rows
        if row.clock == clock and row.rate and (work := row.timing.work) and work.machine
    ]


def _words(candidate: str, shown: Sequence[_Mark]) -> str:
    shares = [mark.share for mark in shown if mark.row.candidate == candidate]
    return f"{candidate}: {percent(min(shares))} to {percent(max(shares))} of the line"


def _bound(machine: MachineRates, intensity: float) -> float:
    """Return the floating-point operations a nanosecond that memory and arithmetic allow."""
    return min(machine.flops_per_second, intensity * machine.bytes_per_second) / 1e9


def _draw(
    shown: Sequence[_Mark], candidates: list[str], title: str, words: str, key: str
) -> Markup:
    machine = shown[0].machine  # measured once a run
    ridge = machine.flops_per_second / machine.bytes_per_second
    across = log_axis([ridge, *(mark.intensity for mark in shown)], _LEFT, _RIGHT, room=2)
    bounds = [(x, _bound(machine, x)) for x in (across.low, ridge, across.high)]
    rates = [*(mark.flops_per_ns for mark in shown), *(rate for _, rate in bounds)]
    upward = log_axis(rates, _BOTTOM, _TOP)
    line = "L".join(f"{across.at(x):.0f} {upward.at(rate):.0f}" for x, rate in bounds)
    body = [
        legend(candidates, 0, 12),
        text(0, _TOP - 14, "GFLOP/s", "t soft"),
        upright(across, _TOP, _BOTTOM, digits),
        level(upward, _LEFT, _RIGHT, digits),
        tag("path", d=f"M{line}", class_="range"),
        text((_LEFT + _RIGHT) / 2, _BOTTOM + 33, "FLOP a byte", "t soft middle"),
    ]
    for series, name in enumerate(candidates):
        mine = [mark for mark in shown if mark.row.candidate == name]
        points = [(across.at(mark.intensity), upward.at(mark.flops_per_ns)) for mark in mine]
        body.append(marks(points, series))
    width = max(_RIGHT + 12, legend_width(candidates))
    return picture(width, _BOTTOM + 40, title, words, "".join(body), key, hatched=False)
