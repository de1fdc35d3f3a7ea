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
    for steps, medians, compared in step_rows(bench):
        least, most = time_text(min(medians)), time_text(max(medians))
        mean = ratio_of_peer(compared.geometric_mean, compared) if compared else ""
        rows.append(
            (
                f"{steps.trace} ({len(steps.steps)})",
                steps.candidate,
                time_text(median(medians)),
                f"{least} to {most}",
                mean,
                ratio_text(compared.worst) if compared else "",
            )
        )
    return rows
