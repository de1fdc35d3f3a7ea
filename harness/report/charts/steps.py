"""Metadata of a whole engine step: distribution over a trace, growth with the requests."""

from __future__ import annotations

from itertools import pairwise

from attnproof.harness.model.timing import Bench, Step, Steps
from attnproof.harness.report.charts.figure import (
    Axis,
    Chart,
    Point,
    Table,
    legend,
    legend_width,
    level,
    log_axis,
    marks,
    staircase,
    upright,
)
from attnproof.harness.report.pictures.svg import Markup, picture
from attnproof.harness.report.shared.quantities import (
    median,
    percent,
    quantile,
    time_text,
    time_tick,
)
from attnproof.harness.report.shared.timings import step_medians
from attnproof.harness.report.shared.wording import listed, many

_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 550.0, 30.0, 230.0
_SHARES = (0.1, 0.5, 0.9, 0.99)
_BEYOND = 5
"""Minimum number of steps beyond a quantile that is shown."""
_MOST = 400
"""Maximum number of steps drawn of a trace and candidate; a longer trace is thinned evenly."""
_BINS = (0, 1, 8, 64, 256, 1024, 1 << 62)
"""Bounds of the groups of steps by requests; the last has no upper bound."""
_SPREAD_READING = (
    "Go up from a time on the axis (logarithmic): the line gives the share of the trace's steps "
    "whose metadata took no longer. A line further left is better; a long flat end on the right "
    "means that a few steps take much longer than the rest."
)
_GROWTH_READING = (
    "A mark is a step of the trace: its median over the rounds against its number of requests; "
    "both axes are logarithmic. A higher mark at the same number of requests has more tokens or "
    "longer contexts, if the candidate's time depends on those."
)


def step_charts(bench: Bench, prefix: str) -> list[Chart]:
    """Return two charts per trace: the distribution and the growth, if the requests vary."""
    charts = []
    for number, trace in enumerate(dict.fromkeys(steps.trace for steps in bench.steps), 1):
        mine = [steps for steps in bench.steps if steps.trace == trace]
        charts.append(_spread(trace, mine, f"{prefix}{number}-spread"))
        if len({step.requests for steps in mine for step in steps.steps}) > 1:
            charts.append(_growth(trace, mine, f"{prefix}{number}-growth"))
    return charts


def _spread(trace: str, candidates: list[Steps], key: str) -> Chart:
    title = f"Time of a step: {trace}"
    shares = [s for s in _SHARES if min(map(_count, candidates)) * (1 - s) >= _BEYOND or s == 0.5]
    times = {steps.candidate: step_medians(steps) for steps in candidates}
    table = Table(
        title,
        ("Candidate", "Steps", *(_quantile_name(share) for share in shares)),
        tuple(
            (name, f"{len(values):,}", *(time_text(quantile(values, s)) for s in shares))
            for name, values in times.items()
        ),
    )
    sentence = listed([f"{name} {time_text(median(values))}" for name, values in times.items()])
    sentence = f"Median step: {sentence}."
    across = log_axis([t for values in times.values() for t in values], _LEFT, _RIGHT)
    upward = Axis(0, 1, _BOTTOM, _TOP, log=False)
    body = [upright(across, _TOP, _BOTTOM, time_tick), level(upward, _LEFT, _RIGHT, percent)]
    for series, values in enumerate(times.values()):
        body.append(staircase(_climb(values, across, upward), series))
    drawn = _framed(body, list(times), title, sentence, key)
    return Chart(key, title, sentence, drawn, _SPREAD_READING, table)


def _growth(trace: str, candidates: list[Steps], key: str) -> Chart:
    title = f"Time of a step against its requests: {trace}"
    bins = [_Bin(low + 1, high) for low, high in pairwise(_BINS)]
    used = [b for b in bins if any(b.of(steps) for steps in candidates)]
    table = Table(
        title,
        ("Candidate", *(b.name for b in used)),
        tuple((steps.candidate, *(b.text(steps) for b in used)) for steps in candidates),
    )
    drawn_steps = [_thinned(steps.steps) for steps in candidates]
    every = [step for steps in drawn_steps for step in steps]
    across = log_axis([max(1.0, step.requests) for step in every], _LEFT, _RIGHT)
    upward = log_axis([median(step.ns) for step in every], _BOTTOM, _TOP)
    body = [upright(across, _TOP, _BOTTOM, lambda tick: f"{tick:,.0f}")]
    body.append(level(upward, _LEFT, _RIGHT, time_tick))
    for series, steps in enumerate(drawn_steps):
        points = [(across.at(max(1, s.requests)), upward.at(median(s.ns))) for s in steps]
        body.append(marks(points, series, 5.0))
    count = many(max(map(_count, candidates)), "step")
    few = min(step.requests for step in every)
    sentence = f"{count} with {few:,} to {many(max(s.requests for s in every), 'request')}."
    drawn = _framed(body, [steps.candidate for steps in candidates], title, sentence, key)
    return Chart(key, title, sentence, drawn, _GROWTH_READING, table)


class _Bin:
    """Steps whose number of requests is between two numbers, both included."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        last = "" if high == _BINS[-1] else f" to {high:,}"
        first = f"{low:,}" if last else f"{low:,} or more"
        self.name = many(1, "request") if high == 1 else f"{first}{last} requests"

    def of(self, steps: Steps) -> list[Step]:
        return [step for step in steps.steps if self.low <= max(1, step.requests) <= self.high]

    def text(self, steps: Steps) -> str:
        steps_in_bin = self.of(steps)
        medians = [median(step.ns) for step in steps_in_bin if step.ns]
        return f"{time_text(median(medians))} ({len(steps_in_bin):,})" if steps_in_bin else "none"


def _count(steps: Steps) -> int:
    return len(steps.steps)


def _thinned(steps: list[Step]) -> list[Step]:
    return [step for step in steps if step.ns][:: -(-max(1, len(steps)) // _MOST)]


def _quantile_name(share: float) -> str:
    return "Median" if share == 0.5 else f"{percent(share)} of steps within"


def _climb(values: list[float], across: Axis, upward: Axis) -> list[Point]:
    """Return the corners of the cumulative distribution, in pixels."""
    ordered = sorted(values)
    points = [(across.at(ordered[0]), upward.at(0))] if ordered else []
    points += [
        (across.at(value), upward.at(place / len(ordered)))
        for place, value in enumerate(ordered, 1)
    ]
    return points


def _framed(body: list[Markup], names: list[str], title: str, words: str, key: str) -> Markup:
    drawn = "".join([*body, legend(names, _LEFT, 12)])
    width = max(_RIGHT + 12, _LEFT + legend_width(names))
    return picture(width, _BOTTOM + 24, title, words, drawn, key, hatched=False)
