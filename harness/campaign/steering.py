"""Choice of the next task's pair: the fastest growth, or one time in four the fewest tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from attnproof.harness.campaign.records import Pair
from attnproof.harness.cases.coverage.features import STARTS

TURNS = 4
"""One task in this many goes to the pair with the fewest tasks, however little it grows."""
_NONE = (0,) * STARTS[-1]


Features = Mapping[str, Mapping[str, int]]
"""Cases by origin and by the cells that they fill (`OperationResult.features`)."""


@dataclass
class Growth:
    """The pairs of cells that the cases of an operation and candidate fill, task by task."""

    covered: dict[str, list[int]] = field(default_factory=dict)
    """For each origin and cell the cells that a case of the origin fills together with it."""
    tasks: int = 0
    rate: float = 0.0
    """Pairs of cells per second of work that the latest task was the first to fill."""

    def first(self, features: Features) -> dict[str, dict[str, int]]:
        """Return the cases that fill a pair of cells which none of an earlier task filled.

        They are few, and all that a campaign keeps of the features of millions of cases.
        """
        kept: dict[str, dict[str, int]] = {}
        for origin, counts in features.items():
            rows = self.covered.get(origin, _NONE)
            new = {
                mask: number
                for mask, number in counts.items()
                if any(int(mask, 16) & ~rows[cell] for cell in _cells(int(mask, 16)))
            }
            if new:
                kept[origin] = new
        return kept

    def add(self, features: Features, seconds: float) -> int:
        """Add the cells of a task; return the number of new pairs of cells."""
        new = 0
        for origin, counts in features.items():
            rows = self.covered.setdefault(origin, list(_NONE))
            for mask in [int(text, 16) for text in counts]:
                for cell in _cells(mask):
                    new += (mask & ~rows[cell]).bit_count()
                    rows[cell] |= mask
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
    at_work = Counter(running)

    def begun(pair: Pair) -> int:
        return growth[pair].tasks + at_work[pair]

    fewest = min(pairs, key=begun)
    if not begun(fewest) or turn % TURNS == TURNS - 1:
        return fewest
    best = max(pairs, key=lambda pair: growth[pair].rate / (1 + at_work[pair]))
    return best if growth[best].rate else fewest


def _cells(mask: int) -> Iterator[int]:
    """Yield the numbers of the cells of a mask."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
