"""Raw samples in the order of the rounds: strips of single timings, and the control."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.model.timing import Bench, Clock, Comparison, Timing
from attnproof.harness.report.charts.figure import (
    Axis,
    Chart,
    Point,
    Table,
    legend,
    legend_width,
    level,
    linear_axis,
    log_axis,
    marks,
    upright,
)
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, picture, tag, text
from attnproof.harness.report.shared.baseline import worse, worse_text
from attnproof.harness.report.shared.quantities import (
    median,
    percent,
    quantile,
    time_text,
    time_tick,
)
from attnproof.harness.report.shared.ratios import Drift
from attnproof.harness.report.shared.wording import many

_REGRESSIONS, _WIDEST = 4, 2
"""Maximum numbers of strips: of worse timings, of comparisons with the widest intervals."""
_MOST = 400
"""Maximum number of samples drawn of a strip; more samples are thinned evenly."""
_APART = 5
"""Ratio of the slowest sample to the fastest above which the axis is logarithmic."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 550.0, 30.0, 190.0
_EXPECTED = "- - - expected from the baseline"
_STRIP_READING = (
    "A mark is one sample, from the first round on the left to the last on the right; no outlier "
    "is left out. The level line is the median. Two clouds that do not overlap are a clear "
    "difference; a slope, a jump or a second cloud means that the machine changed during the run."
)
_CONTROL_READING = (
    "The control is a fixed piece of work without any candidate. A level cloud means that the "
    "machine was the same from beginning to end; where it rises, the whole machine was slower."
)


class Strip(NamedTuple):
    """The timings of one strip, and the reason for which it is drawn."""

    title: str
    why: str
    clock: Clock
    timings: list[Timing]
    baseline_ns: float = 0.0
    """Median expected from the baseline in nanoseconds, 0 for none."""


def strips(bench: Bench, prefix: str) -> list[Chart]:
    """Return strips of the timings that got worse, and of the widest intervals."""
    chosen = [*_regressions(bench), *_widest(bench)]
    return [_strip(strip, f"{prefix}{number}") for number, strip in enumerate(chosen, 1)]


def control_chart(bench: Bench, seen: Drift, key: str) -> Chart:
    """Return the chart of the control's samples over the run."""
    title = "The control over the run"
    table = Table(title, _HEAD, (_quantiles("control", bench.control_ns),))
    points = _chosen(bench.control_ns)
    sentence = f"{many(seen.samples, 'sample')}: {drift_text(seen)}."
    drawn = _draw([("control", points)], [median(bench.control_ns)], title, sentence, key)
    return Chart(key, title, sentence, drawn, _CONTROL_READING, table)


def drift_text(seen: Drift) -> str:
    """Return "changed by +1.2 % from beginning to end, 8 in 10 samples are within 3 %"."""
    sign = "+" if seen.change >= 0 else ""
    return (
        f"changed by {sign}{percent(seen.change)} from beginning to end, "
        f"8 in 10 samples are within {percent(seen.spread)}"
    )


def _regressions(bench: Bench) -> list[Strip]:
    strips = []
    # A baseline of another machine has comparable counts, but no comparable times.
    compared = bench.baseline.state == "compared"
    for entry in worse(bench)[:_REGRESSIONS]:
        mine = _timings(bench, entry.operation, entry.workload, (entry.candidate,))
        if not mine:
            continue
        samples = _samples(mine[0], entry.clock)
        strips.append(
            Strip(
                f"{entry.operation}, {entry.workload}",
                f"{entry.candidate}: {worse_text(entry, bench.baseline.state)}",
                entry.clock,
                mine,
                median(samples) / entry.ratio if compared and samples else 0.0,
            )
        )
    return strips


def _widest(bench: Bench) -> list[Strip]:
    ordered = sorted(bench.comparisons, key=lambda c: (-_width(c), c.operation, c.workload))
    return [
        Strip(
            f"{c.operation}, {c.workload}",
            "one of the widest intervals of this run",
            c.clock,
            _timings(bench, c.operation, c.workload, (c.candidate, c.peer)),
        )
        for c in ordered[:_WIDEST]
    ]


def _width(comparison: Comparison) -> float:
    return comparison.high / comparison.low if comparison.low > 0 else 0.0


def _timings(
    bench: Bench, operation: str, workload: str, candidates: tuple[str, ...]
) -> list[Timing]:
    by_candidate = {
        timing.candidate: timing
        for timing in bench.timings
        if timing.operation == operation and timing.workload.name == workload
    }
    return [by_candidate[name] for name in candidates if name in by_candidate]


def _samples(timing: Timing, clock: Clock) -> list[float]:
    return timing.host_ns if clock == "host" else timing.device_ns


_HEAD = ("Of", "n", "Least", "25 %", "Median", "75 %", "Most")


def _quantiles(name: str, samples: list[float]) -> tuple[str, ...]:
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    return (
        name,
        f"{len(samples):,}",
        *(time_text(quantile(samples, share)) for share in shares if samples),
    )


def _strip(strip: Strip, key: str) -> Chart:
    taken = {timing.candidate: _samples(timing, strip.clock) for timing in strip.timings}
    table = Table(strip.title, _HEAD, tuple(_quantiles(name, taken[name]) for name in taken))
    series = [(name, _chosen(samples)) for name, samples in taken.items() if samples]
    medians = [median(samples) for samples in taken.values() if samples]
    step = max((_step(samples) for samples in taken.values()), default=1)
    thinned = f" One sample in {step} is drawn." if step > 1 else ""
    sentence = f"{strip.clock.capitalize()} time; {strip.why}.{thinned}"
    drawn = _draw(series, medians, strip.title, sentence, key, strip.baseline_ns)
    return Chart(key, strip.title, sentence, drawn, _STRIP_READING, table)


def _chosen(samples: list[float]) -> list[Point]:
    return [(float(place), ns) for place, ns in enumerate(samples, 1)][:: _step(samples)]


def _step(samples: list[float]) -> int:
    return max(1, -(-len(samples) // _MOST))


def _draw(
    series: list[tuple[str, list[Point]]],
    medians: list[float],
    title: str,
    words: str,
    key: str,
    baseline_ns: float = 0.0,
) -> Markup:
    every = [value for _, points in series for _, value in points]
    upward = _upward([*every, *([baseline_ns] if baseline_ns else [])])
    last = max((points[-1][0] for _, points in series), default=1.0)
    across = Axis(0, last + 1, _LEFT, _RIGHT, log=False)
    body = [level(upward, _LEFT, _RIGHT, time_tick)]
    body.append(upright(across, _TOP, _BOTTOM, lambda tick: f"{tick:,.0f}"))
    for place, (_, points) in enumerate(series):
        body.append(marks([(across.at(x), upward.at(y)) for x, y in points], place, 5.0))
        body.append(_level_line(upward.at(medians[place]), f"line k{place}"))
    names = [name for name, _ in series]
    body.append(legend(names, _LEFT, 12))
    width = _LEFT + legend_width(names)
    if baseline_ns:
        body.append(_level_line(upward.at(baseline_ns), "one dashed"))
        body.append(text(width, 16, _EXPECTED, "t soft"))
        width += len(_EXPECTED) * CHARACTER
    width = max(width, _RIGHT + 12)
    return picture(width, _BOTTOM + 24, title, words, "".join(body), key, hatched=False)


def _upward(values: list[float]) -> Axis:
    """Return a linear axis, or a logarithmic one if the slowest samples would hide the fastest."""
    apart = max(values, default=0.0) > _APART * min(values, default=1.0) > 0
    return (log_axis if apart else linear_axis)(values, _BOTTOM, _TOP)


def _level_line(y: float, class_: str) -> Markup:
    return tag("path", d=f"M{_LEFT:.0f} {y:.1f}H{_RIGHT:.0f}", class_=class_)
