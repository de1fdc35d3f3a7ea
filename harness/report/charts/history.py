"""History: this run beside the baselines that were saved on this machine."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.model.run import Run
from attnproof.harness.model.timing import Past
from attnproof.harness.report.charts.figure import (
    Axis,
    Chart,
    Table,
    legend,
    legend_width,
    level,
    line,
    log_axis,
)
from attnproof.harness.report.pictures.svg import picture, tag, text
from attnproof.harness.report.shared.quantities import (
    geometric_mean,
    median,
    ratio_text,
    ratio_tick,
)
from attnproof.harness.report.shared.wording import many

_LEFT, _TOP, _BOTTOM, _STEP = 70.0, 36.0, 190.0, 110.0
_MOST = 12
"""Maximum number of baselines drawn, the latest ones."""
_READING = (
    "Each column is a saved baseline, the oldest on the left, this run on the right. A line is a "
    "candidate: the geometric mean of its times, in units of the control, divided by this run's "
    "times, over the workloads in both. Above 1 the candidate was slower than now. The line of a "
    "candidate whose code did not change should be level; otherwise the machine or its software "
    "differs."
)


class _Column(NamedTuple):
    name: str
    created: str
    commit: str
    relative: dict[str, float]
    """Time in this column divided by the time now, by candidate."""
    timings: int


def history(run: Run, key: str) -> Chart | None:
    """Return one line per candidate, None if no baseline shares a timing with this run."""
    assert run.bench is not None
    past = run.bench.history[-_MOST:]
    columns = [column for entry in past if (column := _column(run, entry)).relative]
    if not columns:
        return None
    names = list(dict.fromkeys(timing.candidate for timing in run.bench.timings))
    now = dict.fromkeys(names, 1.0)
    commit = run.environment.commit or "unknown"
    columns.append(_Column("this run", run.started, commit, now, len(run.bench.timings)))
    names = [name for name in names if any(name in column.relative for column in columns[:-1])]
    title = "History: earlier time divided by time now"
    table = Table(
        title,
        ("Baseline", "Created", "Commit", "Timings in common", *names),
        tuple(_row(column, names) for column in columns),
    )
    sentence = f"{many(len(columns) - 1, 'baseline')} of this machine."
    return Chart(key, title, sentence, _draw(columns, names, title, key), _READING, table)


def _column(run: Run, past: Past) -> _Column:
    """Return the baseline's times relative to this run, in units of each run's control."""
    bench = run.bench
    assert bench is not None
    control = median(bench.control_ns) if bench.control_ns else 0.0
    unit = past.control_ns / control if past.control_ns and control else 1.0
    ratios: dict[str, list[float]] = {}
    for timing in bench.timings:
        place = f"{timing.operation} / {timing.candidate} / {timing.workload.name}"
        before = past.medians_ns.get(place, 0.0)
        if before > 0 and timing.host.median_ns > 0:
            ratios.setdefault(timing.candidate, []).append(before / unit / timing.host.median_ns)
    relative = {name: geometric_mean(relative_times) for name, relative_times in ratios.items()}
    count = sum(map(len, ratios.values()))
    return _Column(past.name, past.created, past.commit, relative, count)


def _row(column: _Column, names: list[str]) -> tuple[str, ...]:
    relative = column.relative
    times = (ratio_text(relative[name]) if name in relative else "not timed" for name in names)
    return (column.name, column.created, column.commit, f"{column.timings:,}", *times)


def _draw(columns: list[_Column], names: list[str], title: str, key: str) -> str:
    right = _LEFT + _STEP * len(columns)
    values = [value for column in columns for value in column.relative.values()]
    upward = log_axis(values, _BOTTOM, _TOP, room=1.1)
    across = Axis(0, len(columns), _LEFT, right, log=False)
    body = [level(upward, _LEFT, right, ratio_tick)]
    now = upward.at(1)
    body.append(tag("path", d=f"M{_LEFT:.0f} {now:.1f}H{right:.0f}", class_="one"))
    for place, column in enumerate(columns):
        x = across.at(place + 0.5)
        body.append(text(x, _BOTTOM + 16, _short(column.name), "t middle"))
        body.append(text(x, _BOTTOM + 31, column.created[:10], "t soft middle"))
        body.append(text(x, _BOTTOM + 46, column.commit[:10], "t soft middle"))
    for series, name in enumerate(names):
        points = [
            (across.at(place + 0.5), upward.at(column.relative[name]))
            for place, column in enumerate(columns)
            if name in column.relative
        ]
        body.append(line(points, series, marked=True))
    body.append(legend(names, _LEFT, 12))
    words = "; ".join(
        f"{column.name}: "
        + ", ".join(f"{name} {ratio_text(value)}" for name, value in column.relative.items())
        for column in columns
    )
    width = max(right + 12, _LEFT + legend_width(names))
    return picture(width, _BOTTOM + 54, title, words, "".join(body), key, hatched=False)


def _short(name: str) -> str:
    return name if len(name) <= 14 else f"{name[:13]}…"
