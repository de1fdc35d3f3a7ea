"""Which steps of a schedule become cases: those of rare structure first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from attnproof.harness.cases.scheduler.step import Step
from attnproof.harness.cases.steps.signature import Signature, signature
from attnproof.harness.model.case import Batch

MAX_BLOCKS = 12_000
"""Most live blocks of a chosen batch: about 80 kB as JSON."""
_KEPT_PER_CHOICE = 4

Chosen = tuple[int, Batch]
"""Number of the step and its batch."""
Value = tuple[int, int]
"""Place of a signature's field and its value."""


class StepReservoir:
    """Keeps a bounded sample of steps, spread over the signatures seen.

    Each signature has a reservoir (every step with it is as likely to be kept). When all of
    them together hold too many, the largest ones shrink; when even single steps are too many,
    signatures without any rare value are forgotten.
    """

    def __init__(
        self, count: int, seed: int = 0, *, max_blocks: int = MAX_BLOCKS, max_tokens: int = 0
    ) -> None:
        self._room = _KEPT_PER_CHOICE * max(count, 1)
        self._most = max(count, 1)
        self._random = np.random.default_rng(seed)
        self._max_blocks = max_blocks
        self._max_tokens = max_tokens
        self._kept: dict[Signature, list[Step]] = {}
        self.size = 0
        """Steps kept, never more than four for each one to choose."""
        self.seen: Counter[Signature] = Counter()
        """How often each signature came up."""
        self.too_large = 0
        """Steps passed over because of max_blocks or max_tokens."""

    def offer(self, step: Step) -> None:
        """Look at a step of the schedule, and keep it or not."""
        mark = signature(step)
        if step.num_blocks > self._max_blocks or 0 < self._max_tokens < step.num_tokens:
            self.too_large += 1
            return
        self.seen[mark] += 1
        kept = self._kept.get(mark)
        if kept is None:
            # A signature forgotten for being common stays forgotten.
            if self.seen[mark] > 1:
                return
            kept = self._kept[mark] = []
        if len(kept) < self._most:
            kept.append(step)
            self.size += 1
            if self.size > self._room:
                self._shrink()
        else:
            place = int(self._random.integers(self.seen[mark]))
            if place < len(kept):
                kept[place] = step

    def _shrink(self) -> None:
        self._most = max(len(kept) for kept in self._kept.values())
        if self._most == 1:
            self._forget(len(self._kept) // 10 + 1)
            return
        self._most -= 1
        for kept in self._kept.values():
            if len(kept) > self._most:
                del kept[int(self._random.integers(len(kept)))]
                self.size -= 1

    def _forget(self, count: int) -> None:
        frequency = _value_frequency(self.seen)
        draw = self._draw()

        def commonness(mark: Signature) -> tuple[int, int, float]:
            return min(frequency[value] for value in enumerate(mark)), self.seen[mark], draw[mark]

        for mark in sorted(self._kept, key=commonness)[-count:]:
            del self._kept[mark]
        self.size = len(self._kept)

    def _draw(self) -> dict[Signature, float]:
        """A random order of the kept: sorted, equally rare ones would come smallest first."""
        return dict(zip(self._kept, self._random.random(len(self._kept)).tolist(), strict=True))

    def choose(self, count: int) -> list[Chosen]:
        """`count` of the kept steps (fewer if there are fewer), rarest structure first.

        The first ones show every value of every signature field that was kept, the rarest
        value first; the others go round the signatures, again the rarest first.
        """
        draw = self._draw()
        ranking = sorted(self._kept, key=lambda mark: (self.seen[mark], draw[mark]))
        queues = {
            mark: [kept[i] for i in self._random.permutation(len(kept))]
            for mark, kept in self._kept.items()
        }
        frequency = _value_frequency(self.seen)
        chosen = [queues[mark].pop() for mark in _show_every_value(ranking, frequency)]
        while len(chosen) < count and any(queues.values()):
            chosen += [queues[mark].pop() for mark in ranking if queues[mark]]
        return [(step.index, step.batch()) for step in chosen[:count]]


def _value_frequency(seen: Counter[Signature]) -> Counter[Value]:
    """In how many steps each value of each field came up."""
    frequency: Counter[Value] = Counter()
    for mark, times in seen.items():
        for value in enumerate(mark):
            frequency[value] += times
    return frequency


def _show_every_value(ranking: list[Signature], frequency: Counter[Value]) -> list[Signature]:
    """Few of the signatures, the first of them best, that show every value of every field."""
    rarest: dict[Value, Signature] = {}
    for mark in ranking:
        for value in enumerate(mark):
            rarest.setdefault(value, mark)
    shown: set[Value] = set()
    chosen: dict[Signature, None] = {}
    for value in sorted(rarest, key=lambda value: (frequency[value], value)):
        if value not in shown:
            chosen[rarest[value]] = None
            shown.update(enumerate(rarest[value]))
    return list(chosen)


def choose_steps(
    schedule: Iterable[Step],
    count: int = 200,
    seed: int = 0,
    *,
    max_blocks: int = MAX_BLOCKS,
    max_tokens: int = 0,
) -> list[Chosen]:
    """`count` steps of a schedule as (number, batch), the rarest structure first.

    Walks the schedule once and keeps at most four times `count` steps on the way, so it can
    be given a whole trace. Steps with more than `max_blocks` live blocks or `max_tokens` query
    tokens (0 for any number) are passed over. Any beginning of the list is a fair choice too.
    """
    reservoir = StepReservoir(count, seed, max_blocks=max_blocks, max_tokens=max_tokens)
    for step in schedule:
        reservoir.offer(step)
    return reservoir.choose(count)
