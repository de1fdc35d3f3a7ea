"""Occurrences of failures that do not fail a candidate: counts, and the smallest case of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

from attnproof.harness.model.case import Case, Origin, Sourced, encode
from attnproof.harness.model.verdict import Failure


@dataclass
class Occurrence:
    """A known deviation, or a root cause that the contract does not judge."""

    failure: Failure
    """Failure of the smallest case."""
    smallest: Sourced
    first: Sourced
    beside: tuple[Failure, ...]
    """Other failures of the smallest case: those that the caller counts as such."""
    shown: Counter[Origin] = field(default_factory=Counter)
    """Cases that show it, by origin."""
    oracles: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    @property
    def cases(self) -> int:
        """Cases that show it."""
        return self.shown.total()

    def is_better(self, case: Case, beside: Sized) -> bool:
        """True if the case has fewer failures beside, or as many and is smaller."""
        old = (len(self.beside), *_size(self.smallest.case))
        return (len(beside), *_size(case)) < old


def count_occurrences(
    occurred: dict[Any, Occurrence],
    failures: Iterable[tuple[Any, Failure]],
    sourced: Sourced,
    beside: tuple[Failure, ...],
) -> None:
    """Count a case for the key of each of its failures; keep it if it is the best so far.

    `beside` are other failures of the case: it is best with the fewest, and then the smallest.
    """
    leading: dict[Any, Failure] = {}
    for key, failure in failures:
        leading.setdefault(key, failure)
        found = occurred.setdefault(key, Occurrence(failure, sourced, sourced, beside))
        found.oracles.add(failure.oracle)
        found.fields.add(failure.field)
        found.kinds.add(failure.kind)
    for key, failure in leading.items():
        found = occurred[key]
        found.shown[sourced.origin] += 1
        if found.is_better(sourced.case, beside):
            found.failure, found.smallest, found.beside = failure, sourced, beside


def _size(case: Case) -> tuple[int, int, int]:
    """Return requests, tokens, and bytes as JSON."""
    return case.num_requests, case.num_tokens, len(encode(case))
