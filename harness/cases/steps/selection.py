"""Selection of engine steps from a schedule, rare structures first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from attnproof.harness.cases.scheduler.step import Step
from attnproof.harness.cases.steps.signature import Signature, signature
from attnproof.harness.model.case import Batch

MAX_BLOCKS = 12_000
"""Maximum number of live blocks of a chosen batch: about 80 kB as JSON."""
_KEPT_PER_CHOICE = 4

Chosen = tuple[int, Batch]
"""Index of the engine step and its batch."""
Value = tuple[int, int]
"""Index of a signature's field and its value."""


class StepReservoir:
    """Bounded sample of engine steps, spread over their signatures.

    Each signature has a reservoir, in which each of its engine steps is equally likely to be
    kept. If the reservoirs hold too many, the largest ones shrink. If they are too many even
    with one engine step each, signatures without a rare value are dropped.
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
        """Number of engine steps kept, at most four for each one to choose."""
        self.seen: Counter[Signature] = Counter()
        """Number of engine steps offered, by signature."""
        self.too_large = 0
        """Number of engine steps skipped because of max_blocks or max_tokens."""

    def offer(self, step: Any, mark: Any = None) -> None:
        """Add an engine step to the sample, or skip it; `mark` is its signature."""
        mark = signature(step) if mark is None else mark
        if step.num_blocks > self._max_blocks or 0 < self._max_tokens < step.num_tokens:
            self.too_large += 1
            return
        self.seen[mark] += 1
        kept = self._kept.get(mark)
        if kept is None:
            # A signature that was dropped for being common is not added again.
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
            self._drop_common(len(self._kept) // 10 + 1)
            return
        self._most -= 1
        for kept in self._kept.values():
            if len(kept) > self._most:
                del kept[int(self._random.integers(len(kept)))]
                self.size -= 1

    def _drop_common(self, count: int) -> None:
        frequency = _value_frequency(self.seen)
        draw = self._tie_breaks()

        def commonness(mark: Signature) -> tuple[int, int, float]:
            return min(frequency[value] for value in enumerate(mark)), self.seen[mark], draw[mark]

        for mark in sorted(self._kept, key=commonness)[-count:]:
            del self._kept[mark]
        self.size = len(self._kept)

    def _tie_breaks(self) -> dict[Signature, float]:
        """Draw a random number for each kept signature, to order equally rare ones."""
        return dict(zip(self._kept, self._random.random(len(self._kept)).tolist(), strict=True))

    def choose(self, count: int) -> list[Chosen]:
        """Choose up to `count` of the kept engine steps, rarest structure first.

        The first ones cover every kept value of every signature field, the rarest value
        first. The others take one engine step of each signature in turn, again the rarest
        first.
        """
        draw = self._tie_breaks()
        ranking = sorted(self._kept, key=lambda mark: (self.seen[mark], draw[mark]))
        queues = {
            mark: [kept[i] for i in self._random.permutation(len(kept))]
            for mark, kept in self._kept.items()
        }
        frequency = _value_frequency(self.seen)
        chosen = [queues[mark].pop() for mark in _cover_every_value(ranking, frequency)]
        while len(chosen) < count and any(queues.values()):
            chosen += [queues[mark].pop() for mark in ranking if queues[mark]]
        return [(step.index, step.batch()) for step in chosen[:count]]


def _value_frequency(seen: Counter[Signature]) -> Counter[Value]:
    """Count the engine steps with each value of each field."""
    frequency: Counter[Value] = Counter()
    for mark, times in seen.items():
        for value in enumerate(mark):
            frequency[value] += times
    return frequency


def _cover_every_value(ranking: list[Signature], frequency: Counter[Value]) -> list[Signature]:
    """Choose signatures that cover every value of every field, preferring the first ones."""
    rarest: dict[Value, Signature] = {}
    for mark in ranking:
        for value in enumerate(mark):
            rarest.setdefault(value, mark)
    covered: set[Value] = set()
    chosen: dict[Signature, None] = {}
    for value in sorted(rarest, key=lambda value: (frequency[value], value)):
        if value not in covered:
            chosen[rarest[value]] = None
            covered.update(enumerate(rarest[value]))
    return list(chosen)


def choose_steps(
    schedule: Iterable[Step],
    count: int = 200,
    seed: int = 0,
    *,
    max_blocks: int = MAX_BLOCKS,
    max_tokens: int = 0,
) -> list[Chosen]:
    """Choose `count` engine steps of a schedule as (index, batch), rarest structure first.

    The schedule is read once, and at most four times `count` engine steps are kept, so it may
    be that of a whole trace. Engine steps with more than `max_blocks` live blocks or
    `max_tokens` query tokens (0 for no limit) are skipped. Any prefix of the list is a good
    selection too.
    """
    reservoir = StepReservoir(count, seed, max_blocks=max_blocks, max_tokens=max_tokens)
    for step in schedule:
        reservoir.offer(step)
    return reservoir.choose(count)
