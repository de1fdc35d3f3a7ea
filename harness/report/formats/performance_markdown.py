"""The performance of a run in a few lines of Markdown, for summary.md."""

from __future__ import annotations

from collections.abc import Callable

from attnproof.harness.model.timing import Bench
from attnproof.harness.report.performance.section import build_baseline
from attnproof.harness.report.shared.baseline import place_text, worse, worse_text
from attnproof.harness.report.shared.quantities import SPEED_GLYPHS, SPEEDS, ratio_text
from attnproof.harness.report.shared.ratios import overall, pairs
from attnproof.harness.report.shared.timings import step_comparison_text
from attnproof.harness.report.shared.wording import many

_REGRESSIONS = 10
"""Maximum number of worse timings named; the rest is counted."""


def performance_parts(bench: Bench, escape: Callable[[str], str]) -> list[str]:
    """Return a table of the pairs, a line per trace, and the comparison with the baseline."""
    parts = [_table(bench, escape)] if bench.comparisons else []
    parts += [f"Whole step, {escape(step_comparison_text(c))}." for c in bench.step_comparisons]
    if bench.baseline.state != "not asked for":
        baseline = build_baseline(bench)
        lines = [f"**{baseline.glyph} {escape(baseline.title)}.** {escape(baseline.sentence)}"]
        parts.append("\n".join([*lines, *_worse(bench, escape)]))
    return parts


def _table(bench: Bench, escape: Callable[[str], str]) -> str:
    speeds = " | ".join(f"{SPEED_GLYPHS[speed]} {speed}" for speed in SPEEDS)
    lines = [
        f"| candidate | against | clock | geometric mean | worst | {speeds} |",
        "|---|---|---|---:|---|" + "---:|" * len(SPEEDS),
    ]
    for pair in pairs(bench):
        total = overall(bench, pair)
        worst = f"{total.worst.operation}, {total.worst.workload}"
        counts = " | ".join(f"{total.counts[speed]:,}" for speed in SPEEDS)
        lines.append(
            f"| {escape(pair.candidate)} | {escape(pair.peer)} | {pair.clock} | "
            f"{ratio_text(total.geometric_mean)} | {ratio_text(total.worst.ratio)} "
            f"({escape(worst)}) | {counts} |"
        )
    return "\n".join(lines)


def _worse(bench: Bench, escape: Callable[[str], str]) -> list[str]:
    regressions = worse(bench)
    lines = [""] if regressions else []
    for entry in regressions[:_REGRESSIONS]:
        line = f"{place_text(entry)}: {worse_text(entry, bench.baseline.state)}"
        lines.append(f"- {SPEED_GLYPHS[entry.verdict]} {escape(line)}")
    if len(regressions) > _REGRESSIONS:
        lines.append(f"- {many(len(regressions) - _REGRESSIONS, 'more timing')}: see index.html")
    return lines
