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


@dataclass
class Growth:
    """The pairs of cells that the cases of an operation and candidate fill, task by task."""

    covered: np.ndarray = field(default_factory=lambda: np.zeros((_CELLS, _CELLS), bool))
    tasks: int = 0
    rate: float = 0.0
    """Pairs of cells that the latest task was first to fill, a second."""

    def add(self, features: Mapping[str, Mapping[str, int]], seconds: float) -> int:
        """Add the cells of a task (`OperationResult.features`); return the new pairs of cells."""
        masks = {int(mask, 16) for counts in features.values() for mask in counts}
        before = int(self.covered.sum())
        if masks:
            bits = bits_of(sorted(masks))
            self.covered |= (bits.T @ bits) > 0
        new = int(self.covered.sum()) - before
        self.tasks += 1
        self.rate = new / max(seconds, 1e-3)
        return new

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
