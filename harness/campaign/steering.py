"""Which pair gets the next task: one whose coverage still grows, now and then any other one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnproof.harness.campaign.records import Pair
from attnproof.harness.cases.coverage.features import STARTS
from attnproof.harness.cases.coverage.steering import bits_of

TURNS = 4
"""One task in this many goes to the pair with the fewest tasks, however little it grows."""
_CELLS = STARTS[-1]


Features = Mapping[str, Mapping[str, int]]
"""Cases by origin and by the cells that they fill (`OperationResult.features`)."""


@dataclass
class Growth:
    """The pairs of cells that the cases of an operation and candidate fill, task by task."""

    covered: dict[str, np.ndarray] = field(default_factory=dict)
    """(cells, cells) True where a case of an origin fills both, by origin."""
    tasks: int = 0
    rate: float = 0.0
    """Pairs of cells that cases of an origin filled first in the latest task, a second."""

    def first(self, features: Features) -> dict[str, dict[str, int]]:
        """Return the cases of a task that fill a pair of cells no earlier one of their origin did.

        They are few, and all that a campaign keeps of the features of millions of cases.
        """
        kept: dict[str, dict[str, int]] = {}
        for origin, counts in features.items():
            if counts:
                bits, missing = bits_of(_masks(counts)), ~self._of(origin)
                new = ((bits @ missing) * bits).any(axis=1)
                if new.any():
                    pairs = zip(counts.items(), new, strict=True)
                    kept[origin] = {mask: count for (mask, count), is_new in pairs if is_new}
        return kept

    def add(self, features: Features, seconds: float) -> int:
        """Add the cells of a task; return the number of new pairs of cells."""
        new = 0
        for origin, counts in features.items():
            if counts:
                bits, before = bits_of(_masks(counts)), self._of(origin)
                self.covered[origin] = before | ((bits.T @ bits) > 0)
                new += int(self.covered[origin].sum()) - int(before.sum())
        self.tasks += 1
        self.rate = new / max(seconds, 1e-3)
        return new

    def _of(self, origin: str) -> np.ndarray:
        return self.covered.get(origin, np.zeros((_CELLS, _CELLS), bool))

    @property
    def grows(self) -> bool:
        """True if the latest task filled a pair of cells first, or there was none yet."""
        return not self.tasks or self.rate > 0


def next_pair(
    pairs: Sequence[Pair], growth: Mapping[Pair, Growth], running: Iterable[Pair], turn: int
) -> Pair:
    """Return the pair of the next task; `turn` is the number of tasks begun so far.

    A pair without a task comes first. Of the others the one whose coverage grew fastest, with its
    rate divided among the tasks that it has running already: what they fill is not known yet.
    """
    at_work = dict.fromkeys(pairs, 0)
    for pair in running:
        if pair in at_work:
            at_work[pair] += 1

    def begun(pair: Pair) -> int:
        return growth[pair].tasks + at_work[pair]

    fewest = min(pairs, key=begun)
    if not begun(fewest) or turn % TURNS == TURNS - 1:
        return fewest
    best = max(pairs, key=lambda pair: growth[pair].rate / (1 + at_work[pair]))
    return best if growth[best].rate else fewest


def _masks(counts: Mapping[str, int]) -> list[int]:
    return [int(mask, 16) for mask in counts]
