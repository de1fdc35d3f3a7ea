"""The table of whole engine steps, for the terminal and for Markdown documents."""

from __future__ import annotations

from attnproof.harness.model.timing import Bench
from attnproof.harness.report.shared.quantities import median, ratio_text, time_text
from attnproof.harness.report.shared.timings import ratio_of_peer, step_rows

TextRow = tuple[str, ...]
"""One row of a table: the text of each cell."""
_HEADINGS = ("steps of", "candidate", "a step", "least to most", "geometric mean", "worst")


def step_table(bench: Bench) -> list[TextRow]:
    """Return the headings, then a row for each trace and candidate."""
    rows: list[TextRow] = [_HEADINGS]
    for steps, medians, comparisons in step_rows(bench):
        least, most = time_text(min(medians)), time_text(max(medians))
        names: TextRow = (
            f"{steps.trace} ({len(steps.steps)})",
            steps.candidate,
            time_text(median(medians)),
            f"{least} to {most}",
        )
        ratios = [(ratio_of_peer(c.geometric_mean, c), ratio_text(c.worst)) for c in comparisons]
        for ratio in ratios or [("", "")]:
            rows.append((*names, *ratio))
            names = ("",) * len(names)
    return rows
