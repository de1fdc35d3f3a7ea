"""Cases with several critical features at once, chosen so that many pairs of them occur."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from random import Random

from attnproof.harness.cases.variation.batch_changes import batch_changes
from attnproof.harness.cases.variation.change import (
    MOST_SIZE,
    Change,
    Limits,
    is_small,
    size_of,
)
from attnproof.harness.cases.variation.param_changes import (
    counts_tokens,
    laid_out,
    large_param_changes,
    param_changes,
)
from attnproof.harness.cases.variation.row_changes import large_changes
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation

_MOST_CHANGES = (5, 12)
"""Maximum of features that one half of the cases and the other half change. A case of many has
many pairs of values, but one of them may hide what another one shows."""
_CANDIDATES = 8
"""Combinations that are drawn for each case; the one with most new pairs is taken."""
_FEWEST_KEPT = 2
"""Cases that a group of values must have before others are drawn: one may hide what it shows."""
_MOST_TRIED = 4
"""Maximum number of tries for that."""
_TRIES = 4
"""Combinations that may be ill-formed for each case that is wanted."""


def changes_of(operation: Operation) -> list[Change]:
    """Return the changes of the operation's cases, in the order in which they are applied."""
    changes = list(batch_changes()) if operation.inputs.has_batch else []
    return [*changes, *param_changes(operation.inputs.params)]


def limits_of(operation: Operation) -> Limits:
    """Return what makes the operation's cases large."""
    inputs = operation.inputs
    return Limits(
        sizes=laid_out(inputs.params),
        whole_contexts=inputs.whole_contexts,
        attends=bool(operation.contract.tolerant),
        lays_out_tokens=not counts_tokens(inputs.params),
    )


def bases_of(boundaries: Iterable[tuple[str, Case]]) -> list[Case]:
    """Return the boundaries that are small enough to be changed, those of several rows first."""
    small = [case for _, case in boundaries if size_of(case) <= MOST_SIZE // 4]
    plain = [case for case in small if case.batch is None or case.num_requests]
    plain = [case for case in plain if not case.params.get("far")]
    return sorted(plain, key=lambda case: case.num_requests < 2)


def crossed(
    operation: Operation, count: int, seed: int, problem: Callable[[Case], str]
) -> Iterator[tuple[str, Case]]:
    """Yield up to `count` cases of several changed features, with their names.

    The pairs of values that no case has had are preferred. A value that makes a case ill-formed
    by `problem`, or too large, is left out of it.
    """
    bases, features = bases_of(operation.inputs.boundaries()), by_feature(changes_of(operation))
    if not bases or not features:
        return
    random, seen, limits = Random(seed), _Seen(), limits_of(operation)
    num_crossed = 0
    for _ in range(count * _TRIES):
        fresh, most = seen.fresh(features), random.choice(_MOST_CHANGES)
        drawn = [_draw(random, features, fresh, most) for _ in range(_CANDIDATES)]
        chosen = max(drawn, key=seen.news)
        base = bases[int(len(bases) * random.random() ** 2)]
        kept, case = apply_all(chosen, base, problem, limits)
        seen.add(chosen, kept)
        if kept and case.id not in seen.ids:
            seen.ids.add(case.id)
            yield "crossed: " + ", ".join(change.name for change in kept), case
            num_crossed += 1
            if num_crossed == count:
                return


def enlarged(
    operation: Operation, count: int, seed: int, problem: Callable[[Case], str]
) -> Iterator[tuple[str, Case]]:
    """Yield up to `count` cases of a large number of rows, tokens or entries, with their names.

    Each has a few other changed features and then one large number.
    """
    params = operation.inputs.params
    large = [*(large_changes() if operation.inputs.has_batch else ()), *large_param_changes(params)]
    bases, features = bases_of(operation.inputs.boundaries()), by_feature(changes_of(operation))
    if not bases or not large:
        return
    random, ids = Random(seed), set()
    random.shuffle(large)
    limits = limits_of(operation).enlarged
    for number in range(count * _TRIES):
        change = large[number % len(large)]
        others = {name: values for name, values in features.items() if name != change.feature}
        for most in (4, 2, 0):  # what is changed beside it may leave no room for it
            chosen = _draw(random, others, others, most)
            kept, case = apply_all([*chosen, change], random.choice(bases), problem, limits)
            if change in kept:
                break
        if change in kept and case.id not in ids:
            ids.add(case.id)
            yield "large: " + ", ".join(change.name for change in kept), case
        if len(ids) == count:
            return


def apply_all(
    changes: Iterable[Change],
    case: Case,
    problem: Callable[[Case], str],
    limits: Limits,
) -> tuple[list[Change], Case]:
    """Return the changes that leave the case well-formed and small, and the changed case."""
    kept: list[Change] = []
    for change in changes:
        changed = change.apply(case)
        if changed is None or changed == case or not is_small(changed, limits):
            continue
        if not problem(changed):
            kept.append(change)
            case = changed
    return kept, case


class _Seen:
    """Groups of values and pairs of them that were tried so far."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.pairs: set[tuple[str, str]] = set()
        self.ids: set[str] = set()

    def is_fresh(self, change: Change) -> bool:
        """True if few cases have a value of the group, and few were tried."""
        few = self.kept[change.group] < _FEWEST_KEPT
        return few and self.tried[change.group] < _MOST_TRIED

    def fresh(self, features: dict[str, list[Change]]) -> dict[str, list[Change]]:
        """Return the fresh values of each feature."""
        return {
            name: [change for change in values if self.is_fresh(change)]
            for name, values in features.items()
        }

    def news(self, changes: Sequence[Change]) -> int:
        """Return the number of new pairs; a fresh value counts as many."""
        groups = [change.group for change in changes]
        pairs = sum(pair not in self.pairs for pair in combinations(groups, 2))
        return pairs + _MOST_CHANGES[0] * sum(map(self.is_fresh, changes))

    def add(self, changes: Sequence[Change], kept: Sequence[Change]) -> None:
        """Count the values that were tried, and the pairs that a case has."""
        groups = [change.group for change in kept]
        self.tried.update(change.group for change in changes)
        self.kept.update(groups)
        self.pairs.update(combinations(groups, 2))


def by_feature(changes: Iterable[Change]) -> dict[str, list[Change]]:
    """Return the changes of each feature, in the order of the features."""
    features: dict[str, list[Change]] = {}
    for change in changes:
        features.setdefault(change.feature, []).append(change)
    return features


def _draw(
    random: Random, features: dict[str, list[Change]], fresh: dict[str, list[Change]], most: int
) -> list[Change]:
    """Draw a value of some features, in their order; those with many fresh values first."""
    count = min(len(features), random.randint(most // 2, most))
    keys = {name: random.random() ** (1 / (1 + len(fresh[name]))) for name in features}
    chosen = set(sorted(features, key=keys.__getitem__)[len(features) - count :])
    return [random.choice(fresh[name] or features[name]) for name in features if name in chosen]
