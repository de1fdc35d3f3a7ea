"""Ratios as pictures: the forest by operation, and the performance profile."""

from __future__ import annotations

from attnproof.harness.model.timing import Bench, Noise
from attnproof.harness.report.charts.figure import (
    Axis,
    Chart,
    Table,
    legend,
    legend_width,
    level,
    log_axis,
    staircase,
    upright,
)
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, picture, rect, tag, text
from attnproof.harness.report.shared.quantities import SPEED_GLYPHS, percent, ratio_text, ratio_tick
from attnproof.harness.report.shared.ratios import (
    Gathered,
    Pair,
    by_operation,
    counts_text,
    overall,
    pairs,
)
from attnproof.harness.report.shared.wording import many

_ROW = 24
_WIDTH = 1190
_COUNTS = 200
"""Width of the text to the right of the forest, in pixels."""
_CLASSES = {"faster": "good", "slower": "bad", "no evidence": "open"}
_THRESHOLDS = (0.5, 0.8, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)

_FOREST_READING = (
    "A row is an operation, the slowest against its peer first; the axis is logarithmic, so "
    "twice as fast and half as fast are equally far from the line at 1. A mark is a workload: "
    "▲ faster, ▼ slower, ◇ no evidence of either. The thin line runs from the lowest to the "
    "highest end of the workloads' 95 % intervals; the vertical bar is the geometric mean. A "
    "ratio in the hatched band differs from 1 by less than the noise floor or the minimum effect."
)
_PROFILE_READING = (
    "Go up from a factor p on the axis: the line gives the share of the workloads that are at "
    "least p times as fast as the peer. A line further right is better; it leaves 100 % at the "
    "worst workload and reaches 0 % at the best. At 1 it gives the share that is not slower."
)


def pair_text(pair: Pair) -> str:
    """Return the pair in words, such as "optimized against vllm, host time"."""
    return f"{pair.candidate} against {pair.peer}, {pair.clock} time"


def forest(bench: Bench, pair: Pair, key: str) -> Chart:
    """Return a row per operation: its workloads, their range, and the geometric mean."""
    rows = by_operation(bench, pair)
    total = overall(bench, pair)
    sentence = (
        f"Geometric mean {ratio_text(total.geometric_mean)} over "
        f"{many(len(total.comparisons), 'comparison')} of {many(total.operations, 'operation')}: "
        f"{counts_text(total.counts)}."
    )
    title = f"Times as fast: {pair_text(pair)}"
    table = Table(
        title,
        ("Operation", "Geometric mean", "Worst", "Best", "Verdicts"),
        tuple(_forest_row(row) for row in rows),
    )
    words = f"{sentence} Slowest operation: {rows[0].operation}. {_FOREST_READING}"
    drawn = _draw_forest(rows, bench.noise, title, words, key)
    return Chart(key, title, sentence, drawn, _FOREST_READING, table)


def profile(bench: Bench, key: str) -> Chart:
    """Return the share of workloads at least p times as fast as the peer, a line per pair."""
    totals = [overall(bench, pair) for pair in pairs(bench)]
    title = "Share of workloads at least p times as fast"
    shares = {p: [percent(_share(total, p)) for total in totals] for p in _THRESHOLDS}
    table = Table(
        title,
        ("p", *(pair_text(total.pair) for total in totals)),
        tuple((ratio_text(p), *values) for p, values in shares.items()),
    )
    sentence = "; ".join(
        f"{pair_text(total.pair)}: {percent(_share(total, 1))} at least as fast, "
        f"{percent(_share(total, 2))} at least twice as fast"
        for total in totals
    )
    drawn = _draw_profile(totals, title, f"{sentence}.", key)
    return Chart(key, title, f"{sentence}.", drawn, _PROFILE_READING, table)


def _forest_row(row: Gathered) -> tuple[str, ...]:
    return (
        row.operation,
        ratio_text(row.geometric_mean),
        f"{ratio_text(row.worst.ratio)} ({row.worst.workload})",
        f"{ratio_text(row.best.ratio)} ({row.best.workload})",
        counts_text(row.counts),
    )


def _draw_forest(rows: list[Gathered], noise: Noise, title: str, words: str, key: str) -> Markup:
    left = max(len(row.operation) for row in rows) * CHARACTER + 16
    right = _WIDTH - _COUNTS
    every = [comparison for row in rows for comparison in row.comparisons]
    ends = [end for comparison in every for end in (comparison.low, comparison.high)]
    axis = log_axis([*ends, 1.0], left, right)
    top, bottom = 26.0, 26.0 + _ROW * len(rows)
    body = [_sides(axis, top, bottom, noise, key), upright(axis, top, bottom, ratio_tick)]
    body += [_draw_row(row, axis, top + _ROW * i) for i, row in enumerate(rows)]
    body.append(text(right + 10, 12, " mean    ▲    ▼    ◇", "t soft keep"))
    return picture(_WIDTH, bottom + 24, title, words, "".join(body), key)


def _sides(axis: Axis, top: float, bottom: float, noise: Noise, key: str) -> Markup:
    """Draw the line at 1, the names of its sides, and the band without verdicts around it."""
    equal, room = axis.at(1), max(noise.floor, noise.minimum_effect)
    low, high = axis.at(1 / (1 + room)), axis.at(1 + room)
    band = tag(
        "rect", x=low, y=top, width=high - low, height=bottom - top, fill=f"url(#{key}-stale)"
    )
    line = tag("path", d=f"M{equal:.1f} {top:.0f}V{bottom:.0f}", class_="one")
    slower = text(equal - 8, 12, "◀ slower than the peer", "t soft end")
    return band + line + slower + text(equal + 8, 12, "faster ▶", "t soft")


def _draw_row(row: Gathered, axis: Axis, y: float) -> Markup:
    middle = y + _ROW / 2
    low = axis.at(min(comparison.low for comparison in row.comparisons))
    high = axis.at(max(comparison.high for comparison in row.comparisons))
    mean = axis.at(row.geometric_mean)
    parts = [
        text(0, middle + 4, row.operation),
        tag("path", d=f"M{low:.0f} {middle:.0f}H{high:.0f}", class_="range"),
        *(_verdict_marks(row, speed, axis, middle) for speed in _CLASSES),
        rect(mean - 1.5, y + 3, 3, _ROW - 6, "mean"),
    ]
    counts = "".join(f"{row.counts[speed]:>5}" for speed in SPEED_GLYPHS)
    words = f"{ratio_text(row.geometric_mean):>6}"
    parts.append(text(axis.end + 10, middle + 4, words, "t keep"))
    parts.append(text(axis.end + 10 + 5 * CHARACTER, middle + 4, counts, "t soft keep"))
    return "".join(parts)


def _verdict_marks(row: Gathered, speed: str, axis: Axis, y: float) -> Markup:
    places = [axis.at(c.ratio) for c in row.comparisons if c.verdict == speed]
    shapes = "".join(_verdict_shape(speed, x, y) for x in places)
    return tag("path", d=shapes, class_=f"v-{_CLASSES[speed]}") if places else ""


def _verdict_shape(speed: str, x: float, y: float) -> str:
    """Return the path of a verdict's mark: a triangle up or down, or a diamond."""
    if speed == "faster":
        return f"M{x:.0f} {y - 4:.0f}l4 7h-8z"
    if speed == "slower":
        return f"M{x:.0f} {y + 4:.0f}l4-7h-8z"
    return f"M{x:.0f} {y - 4:.0f}l4 4l-4 4l-4-4z"


def _draw_profile(totals: list[Gathered], title: str, words: str, key: str) -> Markup:
    names = [pair_text(total.pair) for total in totals]
    ratios = [c.ratio for total in totals for c in total.comparisons]
    axis, height = log_axis([*ratios, 1.0], 60, 800), Axis(0, 1, 250, 34, log=False)
    body = [upright(axis, 34, 250, ratio_tick), level(height, 60, 800, percent)]
    body.append(tag("path", d=f"M{axis.at(1):.1f} 34V250", class_="one"))
    for series, total in enumerate(totals):
        points = [(axis.start, height.at(1.0))]
        for place, ratio in enumerate(sorted(c.ratio for c in total.comparisons), 1):
            points.append((axis.at(ratio), height.at(1 - place / len(total.comparisons))))
        body.append(staircase(points, series))
    body.append(legend(names, 60, 14))
    width = max(820.0, 60 + legend_width(names))
    return picture(width, 276, title, words, "".join(body), key, hatched=False)


def _share(total: Gathered, least: float) -> float:
    ratios = [comparison.ratio for comparison in total.comparisons]
    return sum(ratio >= least for ratio in ratios) / len(ratios)
