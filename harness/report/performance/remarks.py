"""The remarks below the tables of a benchmark, for the terminal and for Markdown documents."""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.timing import Bench
from attnproof.harness.report.shared.baseline import (
    control_text,
    not_confirmed_text,
    place_text,
    uncompared_reason,
    worse,
    worse_text,
)
from attnproof.harness.report.shared.quantities import percent
from attnproof.harness.report.shared.timings import left_out_of_steps, timing_rows
from attnproof.harness.timing.process.copying import LEAST_BYTES

_NAMED = 3
"""Maximum number of operations named in one remark; further ones are counted."""


def remarks(bench: Bench) -> Iterator[str]:
    """Yield the operations left out with reasons, the noise floor, the baseline's result."""
    for operation, reason in left_out_of_steps(bench):
        yield f"not part of a step: {operation} ({reason})"
    for (candidate, reason), operations in _untimed(bench).items():
        named = ", ".join(operations[:_NAMED])
        more = f" and {len(operations) - _NAMED} more" if len(operations) > _NAMED else ""
        yield f"not timed: {named}{more} of {candidate}: {reason}"
    noise = bench.noise
    yield (
        f"noise floor {percent(noise.floor)} from {noise.comparisons} timings of a function "
        f"against itself, smallest effect {percent(noise.minimum_effect)}"
    )
    if any(compared.verdict == "no evidence" for compared in bench.comparisons):
        yield (
            "no evidence: the ratio's interval reaches a smaller effect than these, or its calls "
            "are too few; a longer --seconds gives more of them"
        )
    rates = [row.rate for row in timing_rows(bench)]
    if any(rates):
        yield (
            "rate: bytes that a call has to move, and the time of a copy of as many as a share of "
            "its own; arithmetic as a share of a large product of matrices by torch"
        )
    if None in rates:
        yield (
            f"no rate in {rates.count(None)} of {len(rates)} lines: below {LEAST_BYTES >> 10} KiB "
            "launches and dispatches decide, and the shapes of tables and pools do not say how "
            "many bytes a call has to move"
        )
    yield from _baseline(bench)


def _baseline(bench: Bench) -> Iterator[str]:
    """Yield the counts of the comparison and each worse timing; nothing without a baseline."""
    result, regressions = bench.baseline, worse(bench)
    if result.state == "compared":
        yield (
            f"baseline {result.name} of {result.created}: {len(result.regressions)} "
            f"timings compared, {len(regressions)} slower or costlier"
            f"{not_confirmed_text(result)}{control_text(result)}"
        )
    elif result.state != "not asked for":
        yield f"no time was compared with baseline {result.name}: {uncompared_reason(result)}"
    for entry in regressions:
        yield f"  {place_text(entry)}: {worse_text(entry, result.state)}"


def _untimed(bench: Bench) -> dict[tuple[str, str], list[str]]:
    """Return the operations without a time, by candidate and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in bench.untimed:
        operations = groups.setdefault((entry.candidate, entry.reason), [])
        if entry.operation not in operations:
            operations.append(entry.operation)
    return groups
