"""A benchmark as Markdown for documents: one line an operation and kind of batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final, NamedTuple

from attnproof.harness.model.run import Run
from attnproof.harness.model.timing import Bench, Clock, Comparison, Workload
from attnproof.harness.report.shared.quantities import SPEED_GLYPHS, percent, ratio_text, time_text
from attnproof.harness.report.terminal.bench import Row, remarks, step_rows

_KINDS: Final = ("decode", "mixed", "prefill")
_OTHERS: Final = {"trace": "steps of traces", "model": "layers of models"}

_CLOCKS: Final[tuple[Clock, ...]] = ("host", "device")


def bench_markdown(run: Run) -> str:
    """Tables by the number of requests, of everything else and of steps, under their command."""
    bench = run.bench
    assert bench is not None
    lines = [_introduction(run, bench)]
    for candidate in dict.fromkeys(timing.candidate for timing in bench.timings):
        for clock in _CLOCKS:
            timed = _timed(bench, candidate, clock)
            if timed and (any(one.beside for one in timed) or not bench.comparisons):
                lines += ["", *_piped(list(_by_requests(f"{candidate}, {clock}", timed)))]
                lines += ["", *_piped(list(_elsewhere(f"{candidate}, {clock}", timed)))]
    for operations in dict.fromkeys(steps.operations for steps in bench.steps):
        lines += ["", f"A step is {', '.join(f'`{name}`' for name in operations)}."]
    if bench.steps:
        lines += ["", *_piped(list(step_rows(bench)))]
    return "\n".join([*lines, "", *(f"- {remark}" for remark in remarks(bench)), ""])


def _introduction(run: Run, bench: Bench) -> str:
    environment, peer = run.environment, run.settings.get("compared with")
    beside = (
        f"; before them, how many times as fast as {peer}. "
        f"{SPEED_GLYPHS['slower']} slower, {SPEED_GLYPHS['no evidence']} no evidence of either "
        f"(noise floor {percent(bench.noise.floor)})"
    )
    gpu = f"{environment.gpu}, " if environment.gpu else ""
    return (
        f"Made by `{run.command}` on {run.started[:10]}, commit {environment.commit or 'unknown'}: "
        f"{environment.cpu}, {environment.cpus} cores, {gpu}torch {environment.torch}. "
        f"Median times{beside if bench.comparisons else ''}."
    )


class _Timed(NamedTuple):
    """One timing by one clock, and the comparison with the peer if there is one."""

    operation: str
    workload: Workload
    median_ns: float
    beside: Comparison | None


def _timed(bench: Bench, candidate: str, clock: Clock) -> list[_Timed]:
    beside = {
        (c.operation, c.workload): c
        for c in bench.comparisons
        if (c.candidate, c.clock) == (candidate, clock)
    }
    mine = [timing for timing in bench.timings if timing.candidate == candidate]
    intervals = [timing.host if clock == "host" else timing.device for timing in mine]
    return [
        _Timed(t.operation, t.workload, i.median_ns, beside.get((t.operation, t.workload.name)))
        for t, i in zip(mine, intervals, strict=True)
        if i is not None
    ]


def _by_requests(title: str, timed: list[_Timed]) -> Iterator[Row]:
    """Heading first; a row an operation and kind of batch, a column a number of requests."""
    drawn = [one for one in timed if one.workload.kind in _KINDS]
    columns = sorted({one.workload.requests for one in drawn})
    yield (title, "requests:", *(f"{count:,}" for count in columns))
    for operation, group in groupby(drawn, lambda one: one.operation):
        cells: dict[str, dict[int, str]] = {}
        for one in group:
            cells.setdefault(one.workload.kind, {})[one.workload.requests] = _cell(one)
        for number, kind in enumerate(kind for kind in _KINDS if kind in cells):
            name = operation if number == 0 else ""
            yield (name, kind, *(cells[kind].get(count, "") for count in columns))


def _cell(timed: _Timed) -> str:
    time, beside = time_text(timed.median_ns), timed.beside
    if beside is None:
        return time
    glyph = "" if beside.verdict == "faster" else f"{SPEED_GLYPHS[beside.verdict]} "
    return f"{glyph}{ratio_text(beside.ratio)}, {time}"


def _elsewhere(title: str, timed: list[_Timed]) -> Iterator[Row]:
    """Heading first; steps of traces and layers of models, from the least to the most."""
    yield (title, "on", "timings", "times as fast", "time")
    others = [one for one in timed if one.workload.kind in _OTHERS]
    for (operation, kind), group in groupby(others, lambda one: (one.operation, one.workload.kind)):
        found = list(group)
        ratios = sorted(one.beside.ratio for one in found if one.beside)
        times = sorted(one.median_ns for one in found)
        span = _range([ratio_text(r) for r in ratios]), _range([time_text(ns) for ns in times])
        yield (operation, _OTHERS[kind], str(len(found)), *span)


def _range(ascending: list[str]) -> str:
    if not ascending or ascending[0] == ascending[-1]:
        return "".join(ascending[:1])
    return f"{ascending[0]} to {ascending[-1]}"


def _piped(rows: list[Row]) -> Iterator[str]:
    """The rows as a table, the first its heading; nothing where there is no other."""
    for number, row in enumerate(rows if len(rows) > 1 else ()):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield f"|{'---|' * len(row)}"
