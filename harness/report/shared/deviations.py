"""Known deviations in words, for every format."""

from __future__ import annotations

from attnproof.harness.model.run import DeviationResult
from attnproof.harness.report.shared.wording import many


def deviations_title(deviations: list[DeviationResult]) -> str:
    """Return their number, such as "3 known deviations, 1 of them stale"."""
    stale = sum(deviation.stale for deviation in deviations)
    title = many(len(deviations), "known deviation")
    return f"{title}, {stale:,} of them stale" if stale else title


def deviation_line(deviation: DeviationResult) -> str:
    """Return one deviation as a line for a terminal or a log."""
    about = f"{deviation.operation} [{deviation.candidate}] {deviation.id}: {deviation.title}"
    if deviation.stale:
        version = deviation.version or "this version"
        return f"STALE  {about}; no case shows it in {version}: correct its versions, or drop it"
    return f"KNOWN  {about}; {many(deviation.cases, 'case')}; {deviation.command}"
