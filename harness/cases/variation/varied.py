"""Cases that exist, with one or two of their features changed at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from attnproof.harness.cases.variation.change import MOST_SIZE, Change, size_of
from attnproof.harness.cases.variation.combined import (
    apply_all,
    by_feature,
    changes_of,
    limits_of,
)
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation

_TRIES = 4
"""Variations that may be ill-formed for each case that is wanted."""


def varied(
    operation: Operation,
    cases: Sequence[Case],
    count: int,
    seed: int,
    problem: Callable[[Case], str],
) -> Iterator[tuple[str, Case]]:
    """Yield up to `count` variations of the cases, with their names.

    Each is one of the cases with one or two features changed; ill-formed ones by `problem` and
    large ones are left out.
    """
    features = by_feature(changes_of(operation))
    small = [case for case in cases if size_of(case) <= MOST_SIZE and not case.fault]
    if not features or not small:
        return
    random, ids = Random(seed), {case.id for case in cases}
    limits = limits_of(operation)
    for _ in range(count * _TRIES):
        if count <= 0:
            return
        chosen = _draw(random, features)
        kept, case = apply_all(chosen, random.choice(small), problem, limits)
        if kept and case.id not in ids:
            ids.add(case.id)
            count -= 1
            yield "varied: " + ", ".join(change.name for change in kept), case


def _draw(random: Random, features: dict[str, list[Change]]) -> list[Change]:
    count = min(len(features), random.randint(1, 2))
    places = sorted(random.sample(range(len(features)), count))
    names = list(features)
    return [random.choice(features[names[place]]) for place in places]
