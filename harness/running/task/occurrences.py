"""Where known deviations showed: counted, with the smallest case of each."""

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
    """How the smallest case fails because of it."""
    smallest: Sourced
    first: Sourced
    alone: bool
    """Whether nothing else is wrong in the smallest case."""
    cases: int = 0
    oracles: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def note(occurred: dict[str, Occurrence], explained: Explained, sourced: Sourced) -> None:
    """Count a case for each deviation that it shows, and keep it if it shows it best."""
    alone = not explained.unknown
    leading: dict[str, Failure] = {}
    for deviation, failure in explained.known:
        leading.setdefault(deviation.id, failure)
        there = occurred.setdefault(
            deviation.id, Occurrence(deviation, failure, sourced, sourced, alone)
        )
        there.oracles.add(failure.oracle)
        there.fields.add(failure.field)
    for name, failure in leading.items():
        there = occurred[name]
        there.cases += 1
        old = (not there.alone, *_size(there.smallest.case))
        if (not alone, *_size(sourced.case)) < old:
            there.failure, there.smallest, there.alone = failure, sourced, alone


def _size(case: Case) -> tuple[int, int, int]:
    """Requests, tokens, and bytes as JSON."""
    return case.num_requests, case.num_tokens, len(encode(case))
