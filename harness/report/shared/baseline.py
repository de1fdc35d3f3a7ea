"""Timings that are worse than a baseline's, and sentences on the comparison for all formats."""

from __future__ import annotations

from attnproof.harness.model.timing import BaselineResult, BaselineState, Bench, Regression
from attnproof.harness.report.shared.quantities import between, ratio_text

_SAME_SPEED = 0.05
"""Largest relative change of the control that is not reported."""


def is_worse(regression: Regression) -> bool:
    """True if the timing is slower than the baseline's, or an exact count grew."""
    return regression.verdict == "slower" or bool(regression.costs)


def worse(bench: Bench) -> list[Regression]:
    """Return the timings that got worse, the largest slowdown first."""
    regressions = [entry for entry in bench.baseline.regressions if is_worse(entry)]
    return sorted(
        regressions, key=lambda r: (-r.ratio, r.operation, r.candidate, r.workload, r.clock)
    )


def place_text(regression: Regression) -> str:
    """Return "OPERATION of CANDIDATE on WORKLOAD"."""
    return f"{regression.operation} of {regression.candidate} on {regression.workload}"


def worse_text(regression: Regression, state: BaselineState) -> str:
    """Return the ratio of times and the counts that grew.

    Omit the ratio unless `state` is "compared": times of another machine are not comparable.
    """
    interval = between(regression.low, regression.high)
    times = f"{ratio_text(regression.ratio)} the baseline's {regression.clock} time ({interval})"
    parts = [times] if state == "compared" else []
    return "; ".join([*parts, *filter(None, [regression.costs])])


def uncompared_reason(result: BaselineResult) -> str:
    """Return why no time was compared, "" if times were compared."""
    if result.state != "compared":
        return result.reason or f"the baseline is {result.state}"
    if not result.regressions:
        return f"baseline {result.name} and this run have no timing in common"
    return ""


def control_text(result: BaselineResult) -> str:
    """Return how the control's time differs from the baseline's, "" if by at most 5 %."""
    if abs(result.control - 1) <= _SAME_SPEED:
        return ""
    return f"; the control takes {ratio_text(result.control)} its time in the baseline"


def not_confirmed_text(result: BaselineResult) -> str:
    """Return ", 2 looked slower, but not when timed again", "" for none."""
    count = result.not_confirmed
    return f", {count:,} looked slower, but not when timed again" if count else ""
