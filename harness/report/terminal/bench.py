"""A benchmark as text: the tables of the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.escaping import escape_line
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Run
from attnproof.harness.model.timing import Bench
from attnproof.harness.report.performance.remarks import remarks
from attnproof.harness.report.performance.step_table import TextRow, step_table
from attnproof.harness.report.shared.quantities import time_text
from attnproof.harness.report.shared.timings import ratio_of_peer, timing_rows

_HEADINGS = ("operation", "workload", "candidate", "host", "device", "ratio", "verdict", "rate")


def bench_text(run: Run) -> str:
    """Return the timings, the steps, and the remarks on both."""
    bench = run.bench
    assert bench is not None
    parts = [
        attempt("the table of timings", lambda: _aligned(_table(bench)), str),
        attempt("the table of steps", lambda: _aligned(step_table(bench)), str)
        if bench.steps
        else "",
        attempt("the remarks", lambda: "\n".join(map(escape_line, remarks(bench))), str),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(bench: Bench) -> list[TextRow]:
    """Return headings and timings, without rates if there is none."""
    rows = [_HEADINGS, *_timings(bench)]
    return rows if any(row[-1] for row in rows[1:]) else [row[:-1] for row in rows]


def _timings(bench: Bench) -> Iterator[TextRow]:
    """Yield a line for each timing, clock and peer; what repeats the line above is left out."""
    last: tuple[str, ...] = ("", "", "")
    for row in timing_rows(bench):
        deviations = row.timing.deviations
        marks = f" ({', '.join(deviations)})" if deviations else ""
        names = (row.operation, row.workload, row.candidate + marks)
        new = (name if names[: i + 1] != last[: i + 1] else "" for i, name in enumerate(names))
        time = time_text(row.interval.median_ns)
        times = (time, "") if row.clock == "host" else ("", time)
        ratios: list[tuple[str, str]] = [
            (ratio_of_peer(c.ratio, c), c.verdict) for c in row.comparisons
        ] or [("", "")]
        yield (*new, *times, *ratios[0], row.rate.text if row.rate else "")
        for ratio in ratios[1:]:
            yield ("", "", "", "", "", *ratio, "")
        last = names


def _aligned(rows: list[TextRow]) -> str:
    rows = [tuple(map(escape_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
