"""The performance section: the parts of a run's benchmark that the page shows, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from attnproof.harness.guard import Part, attempt
from attnproof.harness.model.run import Run
from attnproof.harness.model.timing import BaselineResult, BaselineState, Bench, Regression
from attnproof.harness.report.charts.figure import Chart, Table
from attnproof.harness.report.charts.history import history
from attnproof.harness.report.charts.ratios import forest, pair_text, profile
from attnproof.harness.report.charts.roofline import roofline
from attnproof.harness.report.charts.samples import control_chart, strips
from attnproof.harness.report.charts.steps import step_charts
from attnproof.harness.report.performance.timing_tables import Parts, conditions, operation_parts
from attnproof.harness.report.shared.baseline import (
    control_text,
    is_worse,
    not_confirmed_text,
    uncompared_reason,
    worse,
)
from attnproof.harness.report.shared.quantities import SPEED_GLYPHS, between, percent, ratio_text
from attnproof.harness.report.shared.ratios import counts_text, drift, overall, pairs
from attnproof.harness.report.shared.timings import (
    left_out_of_steps,
    step_comparison_text,
    step_operations,
)
from attnproof.harness.report.shared.wording import GLYPHS, NO_REASON, listed, many

_ROOM = 285_000
"""Bytes of the page for all operations, half of them if the run has findings."""
_LISTED = 60
"""Maximum number of rows shown of a list; the rest is counted."""


class Headline(NamedTuple):
    """The result of one pair of candidates in a line."""

    pair: str
    ratio: str
    words: str


class Baseline(NamedTuple):
    """The comparison with a baseline."""

    state: str
    """Colour: "good", "bad", "open" or "none"."""
    glyph: str
    title: str
    sentence: str
    worse: Table | None
    better: Table | None
    lost: tuple[str, ...]
    more_lost: int


class Reason(NamedTuple):
    """A reason for a missing time, and the entries that it concerns."""

    reason: str
    entries: tuple[str, ...]
    size: str


class Performance(NamedTuple):
    """The parts of the section."""

    headlines: tuple[Headline, ...]
    trust: str
    baseline: Baseline
    forests: tuple[Chart, ...]
    profile: Chart | None
    roofline: Chart | None
    parts: Parts
    step_sentences: tuple[str, ...]
    step_parts: tuple[str, ...]
    steps: tuple[Chart, ...]
    strips: tuple[Chart, ...]
    history: Chart | None
    conditions: Table
    control: Chart | None
    untimed: tuple[Reason, ...]
    deviations: Table | None


def build_performance(run: Run) -> Performance | None:
    """Return the section's parts, None if nothing was timed."""
    bench = run.bench
    if bench is None:
        return None
    seen = drift(bench.control_ns)
    room = _ROOM // 2 if run.findings else _ROOM
    return Performance(
        headlines=_several("the headlines", lambda: _headlines(bench)),
        trust=attempt("the sentence on noise", lambda: _trust(bench), str),
        baseline=attempt(
            "the comparison with the baseline", lambda: build_baseline(bench), _no_baseline
        ),
        forests=_several(
            "the chart of ratios",
            lambda: (forest(bench, p, f"forest{n}") for n, p in enumerate(pairs(bench), 1)),
        ),
        profile=_optional(
            "the profile", lambda: profile(bench, "profile") if bench.comparisons else None
        ),
        roofline=_optional("the roofline", lambda: roofline(bench, "roofline")),
        parts=attempt(
            "the tables of operations",
            lambda: operation_parts(bench, "operation", room),
            lambda _fault: Parts((), ()),
        ),
        step_sentences=_several(
            "the sentences on steps",
            lambda: (f"{step_comparison_text(c)}." for c in bench.step_comparisons),
        ),
        step_parts=_several("the operations of a step", lambda: _step_parts(bench)),
        steps=_several("the charts of steps", lambda: step_charts(bench, "trace")),
        strips=_several("the charts of samples", lambda: strips(bench, "strip")),
        history=_optional("the chart of the history", lambda: history(run, "history")),
        conditions=attempt(
            "the conditions",
            lambda: conditions(bench),
            lambda fault: Table("Conditions", ("Fault",), ((fault,),)),
        ),
        control=_optional(
            "the chart of the control",
            lambda: control_chart(bench, seen, "control") if seen else None,
        ),
        untimed=_several("the reasons of missing times", lambda: _untimed(bench)),
        deviations=_optional("the known deviations", lambda: _deviations(run, bench)),
    )


def _several(what: str, make: Callable[[], Iterable[Part]]) -> tuple[Part, ...]:
    """Return all parts, none if one of them raises."""
    return attempt(what, lambda: tuple(make()), lambda _fault: ())


def _optional(what: str, make: Callable[[], Part | None]) -> Part | None:
    """Return the part, None if it raises."""
    return attempt(what, make, lambda _fault: None)


def _no_baseline(fault: str) -> Baseline:
    """Return a comparison of which only the fault can be shown."""
    glyph = GLYPHS["INCOMPLETE"]
    return Baseline("open", glyph, "Comparison with a baseline", fault, None, None, (), 0)


def _step_parts(bench: Bench) -> Iterator[str]:
    """Yield a sentence on the operations of a step, and one on each that is not part of it."""
    for names in step_operations(bench):
        yield f"A step is {listed(names)}."
    for name, why in left_out_of_steps(bench):
        yield f"Not part: {name} ({why})."


def build_baseline(bench: Bench) -> Baseline:
    """Return the comparison with the baseline in words; a missing baseline is never a pass."""
    result = bench.baseline
    regressions = worse(bench)
    faster = [r for r in result.regressions if r.verdict == "faster" and not is_worse(r)]
    state, glyph, title = _state(result, len(regressions))
    return Baseline(
        state=state,
        glyph=glyph,
        title=title,
        sentence=_sentence(result, len(regressions), len(faster)),
        worse=_regressions("Worse than the baseline", regressions, result.state)
        if regressions
        else None,
        better=_regressions("Faster than the baseline", faster[:_LISTED], result.state)
        if faster
        else None,
        lost=tuple(result.lost[:_LISTED]),
        more_lost=max(0, len(result.lost) - _LISTED),
    )


def _headlines(bench: Bench) -> list[Headline]:
    headlines = []
    for pair in pairs(bench):
        total = overall(bench, pair)
        worst = total.worst
        words = (
            f"geometric mean of {many(len(total.comparisons), 'comparison')} of "
            f"{many(total.operations, 'operation')}: {counts_text(total.counts)}. Worst: "
            f"{ratio_text(worst.ratio)} in {worst.operation}, {worst.workload}"
        )
        headlines.append(Headline(pair_text(pair), ratio_text(total.geometric_mean), words))
    return headlines


def _trust(bench: Bench) -> str:
    noise = bench.noise
    return (
        f"A verdict needs a Mann-Whitney test, an interval and a difference beyond both the "
        f"minimum effect ({percent(noise.minimum_effect)}) and this run's noise floor "
        f"({percent(noise.floor)}); anything less is no evidence."
    )


def _state(result: BaselineResult, count: int) -> tuple[str, str, str]:
    """Return colour, glyph and title for `count` timings that got worse."""
    if result.state == "not asked for":
        return "none", GLYPHS["NOT OFFERED"], "No baseline was asked for"
    if count:
        what = many(count, "timing")
        return "bad", SPEED_GLYPHS["slower"], f"{what} worse than baseline {result.name}"
    if uncompared_reason(result) or result.lost:
        return "open", GLYPHS["INCOMPLETE"], f"Incomplete against baseline {result.name}"
    return "good", GLYPHS["PASS"], f"Nothing worse than baseline {result.name}"


def _sentence(result: BaselineResult, count: int, faster: int) -> str:
    of = f" of {result.created}" if result.created else ""
    if result.state == "not asked for":
        return "This run was not compared with an earlier one."
    reason = uncompared_reason(result)
    if not reason:
        return (
            f"Of {many(len(result.regressions), 'timing')} that baseline {result.name}{of} and "
            f"this run both have, {count:,} {'is' if count == 1 else 'are'} worse and "
            f"{faster:,} faster{not_confirmed_text(result)}{control_text(result)}."
        )
    counts = ""
    if result.regressions:
        counts = f" Exact counts were still compared: {count:,} grew."
    return (
        f"No time was compared with baseline {result.name}{of}, which is no pass: {reason}.{counts}"
    )


def _regressions(caption: str, regressions: list[Regression], state: BaselineState) -> Table:
    head = ("Timing", "Workload", "Times as long (95 %)", "p", "Verdict", "Counts that grew")
    return Table(
        caption,
        head,
        tuple(
            (
                f"{entry.operation} of {entry.candidate}",
                entry.workload if entry.clock == "host" else f"{entry.workload} (device time)",
                *(_change(entry) if state == "compared" else ("not compared", "", "")),
                entry.costs or "none",
            )
            for entry in regressions
        ),
    )


def _change(entry: Regression) -> tuple[str, str, str]:
    """Return the ratio with its interval, p-value and verdict."""
    return (
        f"{ratio_text(entry.ratio)} ({between(entry.low, entry.high)})",
        f"{entry.p_value:.2g}",
        f"{SPEED_GLYPHS[entry.verdict]} {entry.verdict}",
    )


def _untimed(bench: Bench) -> list[Reason]:
    grouped: dict[str, list[str]] = {}
    for entry in bench.untimed:
        where = f", {entry.workload}" if entry.workload else ""
        name = f"{entry.operation} · {entry.candidate}{where}"
        grouped.setdefault(entry.reason or NO_REASON, []).append(name)
    return [
        Reason(reason, tuple(what), many(len(what), "entry", "entries"))
        for reason, what in sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def _deviations(run: Run, bench: Bench) -> Table | None:
    """Return the known deviations among the timed cases, None for none."""
    titles = {entry.id: entry.title for entry in run.deviations}
    grouped: dict[tuple[str, str, str], int] = {}
    for timing in bench.timings:
        for name in timing.deviations:
            key = (name, timing.operation, timing.candidate)
            grouped[key] = grouped.get(key, 0) + 1
    rows = tuple(
        (name, titles.get(name, "see the file of known deviations"), operation, candidate, f"{n:,}")
        for (name, operation, candidate), n in sorted(grouped.items())
    )
    head = ("Deviation", "Title", "Operation", "Candidate", "Workloads timed")
    return Table("Timed operations with known deviations", head, rows) if rows else None
