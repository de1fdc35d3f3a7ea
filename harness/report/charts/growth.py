"""Time against the number of requests, a panel a kind of batch and a line a candidate."""

from __future__ import annotations

from collections.abc import Sequence

from attnproof.harness.model.timing import Clock, Interval, Timing
from attnproof.harness.report.charts.figure import (
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
from attnproof.harness.report.pictures.svg import Markup, picture, tag, text
from attnproof.harness.report.shared.quantities import time_text, time_tick
from attnproof.harness.report.shared.wording import listed

_LEFT, _PANEL, _GAP = 62.0, 250.0, 26.0
_TOP, _BOTTOM = 48.0, 218.0
_PANELS = (
    ("decode", ("decode",)),
    ("mixed", ("mixed",)),
    ("prefill", ("prefill",)),
    ("traces, models", ("trace", "model")),
)
READING = (
    "Both axes are logarithmic: a level line does not care how many requests there are, one "
    "that rises as steeply as the grid's diagonal takes twice as long for twice as many. The "
    "upright strokes are 95 % intervals, mostly hidden by the marks. Steps of traces and shapes "
    "of models are not joined, as they differ in more than their size."
)


def growth(timings: Sequence[Timing], candidates: Sequence[str], clock: Clock, key: str) -> Chart:
    """Medians of one operation; `candidates` gives each its look. The table has n too."""
    shown = [timing for timing in timings if interval_of(timing, clock)]
    title = f"{clock.capitalize()} time against the number of requests"
    table = Table(
        title,
        ("Candidate", "Workload", "Requests", "Median"),
        tuple(
            (t.candidate, t.workload.name, f"{t.workload.requests:,}", _median(t, clock))
            for t in shown
        ),
    )
    words = listed([_growth_words(shown, name, clock) for name in candidates])
    return Chart(key, title, "", _draw(shown, candidates, clock, title, words, key), READING, table)


def interval_of(timing: Timing, clock: Clock) -> Interval | None:
    """The timing's interval by one clock, None where that clock saw nothing."""
    return timing.host if clock == "host" else timing.device


def _median(timing: Timing, clock: Clock) -> str:
    interval = interval_of(timing, clock)
    return time_text(interval.median_ns) if interval else ""


def _growth_words(timings: Sequence[Timing], candidate: str, clock: Clock) -> str:
    mine = sorted(
        (t for t in timings if t.candidate == candidate), key=lambda t: t.workload.requests
    )
    if not mine:
        return f"{candidate}: not timed"
    first, last = mine[0], mine[-1]
    return (
        f"{candidate}: {_median(first, clock)} at {first.workload.requests:,} requests, "
        f"{_median(last, clock)} at {last.workload.requests:,}"
    )


def _draw(
    timings: Sequence[Timing],
    candidates: Sequence[str],
    clock: Clock,
    title: str,
    words: str,
    key: str,
) -> Markup:
    panels = [
        (name, found)
        for name, kinds in _PANELS
        if (found := [t for t in timings if t.workload.kind in kinds])
    ]
    right = _LEFT + len(panels) * (_PANEL + _GAP) - _GAP
    times = [i.median_ns for t in timings if (i := interval_of(t, clock))]
    upward = log_axis(times, _BOTTOM, _TOP)
    requests = [float(max(1, t.workload.requests)) for t in timings]
    body = [legend(list(candidates), _LEFT, 12), level(upward, _LEFT, right, time_tick)]
    for place, (name, found) in enumerate(panels):
        left = _LEFT + place * (_PANEL + _GAP)
        across = log_axis(requests, left, left + _PANEL, room=1.5)
        body.append(text(left + _PANEL / 2, _TOP - 8, name, "t strong middle"))
        body.append(upright(across, _TOP, _BOTTOM, lambda tick: f"{tick:,.0f}"))
        for series, candidate in enumerate(candidates):
            mine = [t for t in found if t.candidate == candidate]
            body.append(_draw_series(mine, across, upward, series, clock, name in _JOINED))
    body.append(text((_LEFT + right) / 2, _BOTTOM + 33, "requests", "t soft middle"))
    names = _LEFT + legend_width(list(candidates))
    width = max(right + 12, names)
    return picture(width, _BOTTOM + 40, title, words, "".join(body), key, hatched=False)


_JOINED = ("decode", "mixed", "prefill")


def _draw_series(
    timings: list[Timing], across: Axis, upward: Axis, series: int, clock: Clock, joined: bool
) -> Markup:
    points: list[Point] = []
    strokes = ""
    for timing in sorted(timings, key=lambda t: t.workload.requests):
        interval = interval_of(timing, clock)
        assert interval is not None
        x = across.at(max(1, timing.workload.requests))
        points.append((x, upward.at(interval.median_ns)))
        low, high = upward.at(interval.low_ns), upward.at(interval.high_ns)
        if low - high > 8:
            strokes += f"M{x:.1f} {low:.1f}V{high:.1f}"
    drawn = tag("path", d=strokes, class_="range") if strokes else ""
    return drawn + (line(points, series, marked=True) if joined else marks(points, series))
