"""Occurrences of known deviations: counts, and the smallest case of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnproof.harness.model.case import Case, Sourced, encode
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.task.deviations import Explained


@dataclass
class Occurrence:
    """One known deviation on one operation."""

    deviation: Deviation
    failure: Failure
    """Failure of the smallest case that this deviation explains."""
    smallest: Sourced
    first: Sourced
    alone: bool
    """True if the smallest case has no other failure."""
    cases: int = 0
    oracles: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def count_occurrences(
    occurred: dict[str, Occurrence], explained: Explained, sourced: Sourced
) -> None:
    """Count a case for each deviation that it shows; keep it if it is the smallest such case.

    A case without any other failure is preferred to a smaller one with others.
    """
    alone = not explained.unknown
    leading: dict[str, Failure] = {}
    for deviation, failure in explained.known:
        leading.setdefault(deviation.id, failure)
        found = occurred.setdefault(
            deviation.id, Occurrence(deviation, failure, sourced, sourced, alone)
        )
        found.oracles.add(failure.oracle)
        found.fields.add(failure.field)
    for name, failure in leading.items():
        found = occurred[name]
        found.cases += 1
        old = (not found.alone, *_size(found.smallest.case))
        if (not alone, *_size(sourced.case)) < old:
            found.failure, found.smallest, found.alone = failure, sourced, alone


def _size(case: Case) -> tuple[int, int, int]:
    """Return requests, tokens, and bytes as JSON."""
    return case.num_requests, case.num_tokens, len(encode(case))
