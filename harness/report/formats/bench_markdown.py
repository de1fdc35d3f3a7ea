"""A benchmark as Markdown for documents: one line per operation and kind of batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from attnproof.harness.escaping import markdown_code, markdown_text
from attnproof.harness.model.run import Run
from attnproof.harness.model.timing import Bench
from attnproof.harness.report.performance.remarks import remarks
from attnproof.harness.report.performance.step_table import TextRow, step_table
from attnproof.harness.report.shared.quantities import SPEED_GLYPHS, percent, ratio_text, time_text
from attnproof.harness.report.shared.timings import CLOCKS, TimingRow, step_operations, timing_rows

TABLE_MARK: Final = "Made by "
"""Text at the beginning of the tables."""
_KINDS: Final = ("decode", "mixed", "prefill")
_OTHERS: Final = {
    "trace": "steps of traces",
    "recorded": "recorded batches",
    "model": "layers of models",
    "served": "",  # each has a row of its own
}


def bench_markdown(run: Run) -> str:
    """Return the command, then tables by the number of requests, of other workloads, of steps."""
    bench = run.bench
    assert bench is not None
    lines = [_introduction(run, bench)]
    every = timing_rows(bench)
    for candidate in dict.fromkeys(row.candidate for row in every):
        for clock in CLOCKS:
            rows = [row for row in every if (row.candidate, row.clock) == (candidate, clock)]
            # The only peer's times follow from the candidates' times and ratios.
            if rows and (any(row.comparisons for row in rows) or len(peers_of(every)) != 1):
                lines += ["", *_piped(list(_by_requests(f"{candidate}, {clock}", rows)))]
                lines += ["", *_piped(list(_others(f"{candidate}, {clock}", rows)))]
    for operations in step_operations(bench):
        lines += ["", f"A step is {', '.join(map(markdown_code, operations))}."]
    if bench.steps:
        lines += ["", *_piped(step_table(bench))]
    return "\n".join([*lines, "", *(f"- {markdown_text(remark)}" for remark in remarks(bench)), ""])


def _introduction(run: Run, bench: Bench) -> str:
    environment, peer = run.environment, run.settings.get("compared with")
    ratios = (
        f"; before them, how many times as fast as {markdown_text(peer)}. "
        f"{SPEED_GLYPHS['slower']} slower, {SPEED_GLYPHS['no evidence']} no evidence of either "
        f"(noise floor {percent(bench.noise.floor)})"
    )
    gpu = f"{markdown_text(environment.gpu)}, " if environment.gpu else ""
    return (
        f"{TABLE_MARK}{markdown_code(run.command)} on {run.started[:10]}, commit "
        f"{markdown_text(environment.commit or 'unknown')}: {markdown_text(environment.cpu)}, "
        f"{environment.cpus} cores, {gpu}torch {markdown_text(environment.torch)}. "
        f"Median times{ratios if bench.comparisons else ''}."
    )


def _by_requests(title: str, rows: list[TimingRow]) -> Iterator[TextRow]:
    """Yield the headings, then a row per operation and kind of batch, a column per size."""
    drawn = [row for row in rows if row.timing.workload.kind in _KINDS]
    named = len(peers_of(rows)) > 1
    columns = sorted({row.timing.workload.requests for row in drawn})
    yield (title, "requests:", *(f"{count:,}" for count in columns))
    for operation, group in groupby(drawn, lambda row: row.operation):
        cells: dict[str, dict[int, str]] = {}
        for row in group:
            workload = row.timing.workload
            cells.setdefault(workload.kind, {})[workload.requests] = _cell(row, named=named)
        for number, kind in enumerate(kind for kind in _KINDS if kind in cells):
            name = operation if number == 0 else ""
            yield (name, kind, *(cells[kind].get(count, "") for count in columns))


def _cell(row: TimingRow, *, named: bool) -> str:
    ratios = [
        f"{'' if c.verdict == 'faster' else f'{SPEED_GLYPHS[c.verdict]} '}{ratio_text(c.ratio)}"
        + (f" of {c.peer}" if named else "")
        for c in row.comparisons
    ]
    return ", ".join([*ratios, time_text(row.interval.median_ns)])


def peers_of(rows: Iterable[TimingRow]) -> list[str]:
    """Return the names of the peers that rows are compared with."""
    return list(dict.fromkeys(c.peer for row in rows for c in row.comparisons))


def _others(title: str, rows: list[TimingRow]) -> Iterator[TextRow]:
    """Yield the headings, then served batches, and ranges over workloads of other kinds."""
    peers = peers_of(rows)
    named = [f"times as fast as {peer}" for peer in peers]
    yield (title, "on", "timings", *(named if len(peers) > 1 else ["times as fast"]), "time")
    others = [row for row in rows if row.timing.workload.kind in _OTHERS]
    for (operation, name), group in groupby(others, lambda row: (row.operation, _place(row))):
        timed = list(group)
        ratios = [
            sorted(c.ratio for row in timed for c in row.comparisons if c.peer == peer)
            for peer in peers
        ]
        columns = [_range([ratio_text(ratio) for ratio in each]) for each in ratios] or [""]
        times = sorted(row.interval.median_ns for row in timed)
        yield (operation, name, str(len(timed)), *columns, _range([time_text(ns) for ns in times]))


def _place(row: TimingRow) -> str:
    workload = row.timing.workload
    return workload.name if workload.kind == "served" else _OTHERS[workload.kind]


def _range(ascending: list[str]) -> str:
    if not ascending or ascending[0] == ascending[-1]:
        return "".join(ascending[:1])
    return f"{ascending[0]} to {ascending[-1]}"


def _piped(rows: list[TextRow]) -> Iterator[str]:
    """Yield the rows as a Markdown table, the first as its headings; nothing for headings alone."""
    for number, row in enumerate(rows if len(rows) > 1 else ()):
        yield f"| {' | '.join(map(markdown_text, row))} |"
        if number == 0:
            yield f"|{'---|' * len(row)}"
