"""All pairs, by name; a candidate of a run is named by its position."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from attnproof.harness.strength.pairs import of_mutations, other_engines
from attnproof.harness.strength.pairs.pair import Pair


@cache
def all_pairs() -> list[Pair]:
    """Return every pair: those of the catalogue of mutations, then those of other engines."""
    return [*of_mutations.pairs(), *other_engines.PAIRS]


def __getattr__(name: str) -> SimpleNamespace:
    """Return the backend `before_N` or `after_N` of pair N, which a worker imports."""
    side, _, number = name.partition("_")
    if side not in ("before", "after") or not number.isdigit():
        raise AttributeError(name)
    backend: SimpleNamespace = getattr(all_pairs()[int(number)], side)
    return backend
