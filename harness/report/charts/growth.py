"""Time against the number of requests: a panel per kind of batch, a line per candidate.

Workloads of one number of requests are bars: their marks would be one vertical line.
"""

from __future__ import annotations

from collections.abc import Sequence

from attnproof.harness.model.timing import Clock
from attnproof.harness.report.charts.figure import (
    SERIES,
    Axis,
    Chart,
    Point,
    Table,
    legend,
    legend_width,
    level,
    line,
    log_axis,
    marks,
    upright,
)
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, picture, tag, text
from attnproof.harness.report.shared.quantities import time_text, time_tick
from attnproof.harness.report.shared.timings import TimingRow
from attnproof.harness.report.shared.wording import listed

_LEFT, _PANEL, _GAP = 62.0, 250.0, 26.0
_TOP, _BOTTOM = 48.0, 218.0
_PANELS = (
    ("decode", ("decode",)),
    ("mixed", ("mixed",)),
    ("prefill", ("prefill",)),
    ("traces, models", ("trace", "recorded", "model", "served")),
)
_JOINED = ("decode", "mixed", "prefill")
"""Panels whose marks are joined by a line."""
_BAR, _BARS = 11, 300.0
"""Height of a bar, and width of the longest, in pixels."""
_SHORT = 8
"""Height in pixels up to which an interval is hidden by its mark and not drawn."""
READING = (
    "Both axes are logarithmic: a level line means that the time does not depend on the number of "
    "requests; a line as steep as the grid's diagonal takes twice as long for twice as many. "
    "Vertical strokes are 95 % intervals, mostly hidden by the marks. Steps of engines and "
    "shapes of models are not joined: they differ in more than their size. Where all workloads "
    "have one number of requests, a bar is the median of one of them, from 0."
)


def growth(rows: Sequence[TimingRow], candidates: Sequence[str], clock: Clock, key: str) -> Chart:
    """Return the medians of one operation by one clock; `candidates` is the order of the lines."""
    shown = [row for row in rows if row.clock == clock]
    alike = len({_requests(row) for row in shown}) == 1
    against = "of each workload" if alike else "against the number of requests"
    title = f"{clock.capitalize()} time {against}"
    table = Table(
        title,
        ("Candidate", "Workload", "Requests", "Median"),
        tuple(
            (row.candidate, row.workload, f"{_requests(row):,}", time_text(row.interval.median_ns))
            for row in shown
        ),
    )
    words = listed([_growth_words(shown, name) for name in candidates])
    draw = _draw_bars if alike else _draw
    return Chart(key, title, "", draw(shown, candidates, title, words, key), READING, table)


def _requests(row: TimingRow) -> int:
    return row.timing.workload.requests


def _growth_words(rows: Sequence[TimingRow], candidate: str) -> str:
    mine = sorted((row for row in rows if row.candidate == candidate), key=_requests)
    if not mine:
        return f"{candidate}: not timed"
    first, last = mine[0], mine[-1]
    return (
        f"{candidate}: {time_text(first.interval.median_ns)} at {_requests(first):,} requests, "
        f"{time_text(last.interval.median_ns)} at {_requests(last):,}"
    )


def _draw_bars(
    rows: Sequence[TimingRow], candidates: Sequence[str], title: str, words: str, key: str
) -> Markup:
    """Draw a bar from 0 to each median, those of a workload below each other."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    left = max(map(len, workloads)) * CHARACTER + 12
    longest = max(row.interval.median_ns for row in rows)
    across = Axis(0, longest * 1.05, left, left + _BARS, log=False)
    height = _BAR * len(candidates) + 8
    bottom = _TOP + height * len(workloads)
    body = [legend(list(candidates), 0, 12), upright(across, _TOP, bottom, time_tick)]
    for place, workload in enumerate(workloads):
        y = _TOP + height * place + 4
        body.append(text(0, y + height / 2, workload))
        for row in rows:
            if row.workload == workload:
                series = candidates.index(row.candidate)
                x, middle = across.at(row.interval.median_ns), y + _BAR * (series + 0.5)
                path = f"M{left:.1f} {middle:.1f}H{x:.1f}"
                body.append(tag("path", d=path, class_=f"k{series % SERIES} bar"))
    width = max(left + _BARS + 12, legend_width(list(candidates)))
    return picture(width, bottom + 24, title, words, "".join(body), key, hatched=False)


def _draw(
    rows: Sequence[TimingRow], candidates: Sequence[str], title: str, words: str, key: str
) -> Markup:
    panels = [
        (name, panel_rows)
        for name, kinds in _PANELS
        if (panel_rows := [row for row in rows if row.timing.workload.kind in kinds])
    ]
    right = _LEFT + len(panels) * (_PANEL + _GAP) - _GAP
    upward = log_axis([row.interval.median_ns for row in rows], _BOTTOM, _TOP)
    # A logarithmic axis has no place for a batch without requests.
    requests = [float(max(1, _requests(row))) for row in rows]
    body = [legend(list(candidates), _LEFT, 12), level(upward, _LEFT, right, time_tick)]
    for place, (name, panel_rows) in enumerate(panels):
        left = _LEFT + place * (_PANEL + _GAP)
        across = log_axis(requests, left, left + _PANEL, room=1.5)
        body.append(text(left + _PANEL / 2, _TOP - 8, name, "t strong middle"))
        body.append(upright(across, _TOP, _BOTTOM, lambda tick: f"{tick:,.0f}"))
        for series, candidate in enumerate(candidates):
            mine = [row for row in panel_rows if row.candidate == candidate]
            body.append(_draw_series(mine, across, upward, series, joined=name in _JOINED))
    body.append(text((_LEFT + right) / 2, _BOTTOM + 33, "requests", "t soft middle"))
    names = _LEFT + legend_width(list(candidates))
    width = max(right + 12, names)
    return picture(width, _BOTTOM + 40, title, words, "".join(body), key, hatched=False)


def _draw_series(
    rows: list[TimingRow], across: Axis, upward: Axis, series: int, *, joined: bool
) -> Markup:
    points: list[Point] = []
    strokes = ""
    for row in sorted(rows, key=_requests):
        interval = row.interval
        x = across.at(max(1, _requests(row)))
        points.append((x, upward.at(interval.median_ns)))
        low, high = upward.at(interval.low_ns), upward.at(interval.high_ns)
        if low - high > _SHORT:
            strokes += f"M{x:.1f} {low:.1f}V{high:.1f}"
    drawn = tag("path", d=strokes, class_="range") if strokes else ""
    return drawn + (line(points, series, marked=True) if joined else marks(points, series))
