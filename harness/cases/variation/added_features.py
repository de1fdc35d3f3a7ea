"""Engine steps with what an engine adds to a batch beside its requests."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from attnproof.harness.cases.variation.batch_changes import (
    block_changes,
    layout_changes,
    optional_changes,
)
from attnproof.harness.cases.variation.change import Change
from attnproof.harness.cases.variation.combined import by_feature
from attnproof.harness.model.case import Case

_MOST_CHANGES = 4
_LEFT_OUT = frozenset({"block size"})


def with_added_features(case: Case, seed: str, problem: Callable[[Case], str]) -> tuple[str, Case]:
    """Return names of added features, and the case with them; "" if none fits.

    They are padding, spare columns and slots, slack of the bounds, strides, dtypes, logits
    indices, encoder lengths and the classes of other engines. The seed determines them.
    """
    random, kept = Random(seed), list[str]()
    for change in _draw(random):
        changed = change.apply(case)
        if changed is not None and changed != case and not problem(changed):
            kept.append(change.name)
            case = changed
    return ", ".join(kept), case


def _draw(random: Random) -> list[Change]:
    features = by_feature([*block_changes(), *layout_changes(), *optional_changes()])
    names = [name for name in features if name not in _LEFT_OUT]
    places = sorted(random.sample(range(len(names)), random.randint(2, _MOST_CHANGES)))
    return [random.choice(features[names[place]]) for place in places]
