"""Occurrences of failures that do not fail a candidate: counts, and the smallest case of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

from attnproof.harness.model.case import Case, Origin, Sourced, encode
from attnproof.harness.model.verdict import Failure


@dataclass
class Tally:
    """Cases that show one cause, and what they show."""

    shown: Counter[Origin] = field(default_factory=Counter)
    """Cases by origin."""
    explained: Counter[str] = field(default_factory=Counter)
    """Cases by the known mistakes that explain every wrong element."""
    diagnosed: int = 0
    """Cases in which known mistakes were tried."""
    oracles: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)

    @property
    def cases(self) -> int:
        """Cases that show it."""
        return self.shown.total()

    def add(self, sourced: Sourced, failures: list[Failure]) -> None:
        """Count a case with its failures by this cause."""
        self.shown[sourced.origin] += 1
        fits = [set(failure.fits) for failure in failures if failure.fits is not None]
        if fits:
            self.diagnosed += 1
            self.explained.update(set.intersection(*fits))
        self.oracles.update(failure.oracle for failure in failures)
        self.fields.update(failure.field for failure in failures)
        self.kinds.update(failure.kind for failure in failures)


@dataclass
class Occurrence:
    """A known deviation, or a root cause that the contract does not judge."""

    failure: Failure
    """Failure of the smallest case."""
    smallest: Sourced
    first: Sourced
    beside: tuple[Failure, ...]
    """Other failures of the smallest case: those that the caller counts as such."""
    tally: Tally = field(default_factory=Tally)

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
    by_key: dict[Any, list[Failure]] = {}
    for key, failure in failures:
        by_key.setdefault(key, []).append(failure)
    for key, alike in by_key.items():
        occurrence = occurred.setdefault(key, Occurrence(alike[0], sourced, sourced, beside))
        occurrence.tally.add(sourced, alike)
        if occurrence.is_better(sourced.case, beside):
            occurrence.failure, occurrence.smallest, occurrence.beside = alike[0], sourced, beside


def _size(case: Case) -> tuple[int, int, int]:
    """Return requests, tokens, and bytes as JSON."""
    return case.num_requests, case.num_tokens, len(encode(case))
