"""The driver of a campaign: gives out orders and records their answers in the ledger."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec

from attnproof import __version__
from attnproof.harness.campaign.examples import failing_cases, name_of
from attnproof.harness.campaign.ledger import CampaignLedger
from attnproof.harness.campaign.pool import Ended, Pool
from attnproof.harness.campaign.records import (
    Answer,
    Line,
    Order,
    Pair,
    Shrunk,
    Steps,
    TaskEnded,
)
from attnproof.harness.campaign.state import CampaignState, PairState
from attnproof.harness.campaign.steering import next_pair
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, OperationResult
from attnproof.harness.running import interrupt
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import Outcome

_TRIES = 3
"""Times that an order is given out before it counts as impossible."""
_MOST_VALUES = 40
"""Failing cases that one order shrinks."""
_CASES_PER_STEP = 4
"""Drawn cases for each engine step of a task."""
_PARTS = 8
"""Tasks of a pair that share one simulation of an engine; those of all pairs share it too."""
_WAIT_S = 0.5
_LAST_SHRINK_S, _LAST_S = 2.0, 60.0
"""After an interrupt: seconds of shrinking one finding, and of all of it."""
_LOST = (Cause.INTERRUPTED, Cause.TASK_DIED, Cause.MACHINE)
"""Causes for which a task runs again."""


@dataclass(frozen=True)
class Aim:
    """Pairs, settings and limits of a campaign."""

    pairs: dict[Pair, tuple[Operation, Candidate]]
    """The pairs that can be examined."""
    settings: Settings
    """Settings of each task but for seed and root causes; `seed` is the campaign's."""
    seconds: float
    """Seconds to work, including those of earlier drivers."""
    tasks: int = 0
    """Most tasks to run, including those of earlier drivers; 0 for no limit."""


@dataclass
class Driver:
    """Loop that gives out orders to a pool and records their answers."""

    aim: Aim
    ledger: CampaignLedger
    examples: Path
    """Folder of the example database."""
    pool: Pool
    on_line: Callable[[Driver, Line, int], None]
    """Called with each line and the number of pairs of cells that its task filled first."""
    tick: Callable[[Driver], None]
    """Called several times a second."""
    state: CampaignState = field(init=False)
    running: dict[tuple[Pair, int | None], Order] = field(default_factory=dict)
    """Orders that are given out, by pair and number."""
    hurried: bool = False
    """True after an interrupt: no task is begun, and little is shrunk."""
    _tries: Counter[tuple[Pair, int | None]] = field(default_factory=Counter)
    _due: set[Pair] = field(default_factory=set)
    """Pairs that may have failing cases to shrink."""
    _begun_at: float = field(default_factory=time.monotonic)
    _before_s: float = 0.0
    _end_at: float = float("inf")
    """`time.monotonic()` at which remaining orders are cancelled; set by an interrupt."""

    def __post_init__(self) -> None:
        self.state = CampaignState({pair: PairState() for pair in self.aim.pairs})
        for line in self.ledger.lines:
            self.state.add(line)
        self._before_s = self.state.worked_s
        self._due = set(self.aim.pairs)

    @property
    def worked_s(self) -> float:
        """Seconds that this driver and earlier ones have worked."""
        return self._before_s + time.monotonic() - self._begun_at

    @property
    def is_over(self) -> bool:
        """True if no further task is begun."""
        if self.hurried or self.worked_s >= self.aim.seconds or not self._open:
            return True
        at_work = sum(number is not None for _, number in self.running)
        return 0 < self.aim.tasks <= self.state.tasks + at_work

    @property
    def _open(self) -> list[Pair]:
        return [pair for pair in self.aim.pairs if not self.state.pairs[pair].is_closed]

    def work(self) -> bool:
        """Work until time or tasks are up; True if an interrupt came before."""
        try:
            self._work()
        except KeyboardInterrupt:
            self._hurry()
            return True
        return False

    def _work(self) -> None:
        while True:
            interrupt.check()
            size = self.pool.size()
            while len(self.running) < size and (order := self._next()) is not None:
                self.running[order.pair, order.number] = order
                self.pool.submit(order)
            if not self.running:
                return
            if time.monotonic() > self._end_at:
                self.pool.cancel()
                return
            for ended in self.pool.wait(_WAIT_S):
                del self.running[ended.order.pair, ended.order.number]
                self._end(ended)
            self.ledger.sync()
            self.tick(self)

    def _hurry(self) -> None:
        """Shrink what was found a little, and end; a second interrupt ends it at once."""
        interrupt.acknowledge()
        self.hurried = True
        self.pool.cancel()
        self.running.clear()
        self._due = set(self.aim.pairs)
        self._end_at = time.monotonic() + _LAST_S
        try:
            self._work()
        except KeyboardInterrupt:
            self.pool.cancel()

    def _next(self) -> Order | None:
        """Return the next order, None if there is none now."""
        for pair in sorted(pair for pair in self._due if (pair, None) not in self.running):
            values = self._unsettled(pair)
            self._due.discard(pair)
            if values:
                return self._shrinking(pair, values)
        return None if self.is_over else self._task()

    def _unsettled(self, pair: Pair) -> list[bytes]:
        values = failing_cases(self.examples, pair.operation, self.aim.pairs[pair][1])
        return self.state.pairs[pair].unsettled(values)[:_MOST_VALUES]

    def _shrinking(self, pair: Pair, values: list[bytes]) -> Order:
        changes = {"examples": 0, "vary": False, "boundaries": False}
        if self.hurried:
            changes["shrink_seconds"] = _LAST_SHRINK_S  # type: ignore[assignment]
        return Order(
            operation=pair.operation,
            candidate=self.aim.pairs[pair][1],
            settings=self._settings(pair, self.aim.settings.seed, **changes),
            values=tuple(values),
            version=__version__,
        )

    def _task(self) -> Order:
        running = [pair for pair, number in self.running if number is not None]
        growth = {pair: state.growth for pair, state in self.state.pairs.items()}
        pair = next_pair(self._open, growth, running, self.state.tasks + len(running))
        state = self.state.pairs[pair]
        number = next(
            n for n in count(state.lowest) if n not in state.ended and (pair, n) not in self.running
        )
        settings = self._settings(
            pair,
            seed_of(self.aim.settings.seed, pair, number),
            shrink_seconds=0.0,
            boundaries=number == 0,  # they are the same with every seed
        )
        return Order(
            operation=pair.operation,
            candidate=self.aim.pairs[pair][1],
            settings=settings,
            steps=self._steps(number),
            number=number,
            version=__version__,
        )

    def _steps(self, number: int) -> Steps:
        steps = _PARTS * -(-self.aim.settings.examples // _CASES_PER_STEP)
        seed = seed_of(self.aim.settings.seed, Pair("engine steps", ""), number // _PARTS)
        return Steps(steps, seed, number % _PARTS, _PARTS)

    def _settings(self, pair: Pair, seed: int, **changes: float | bool) -> Settings:
        known = tuple(self.state.pairs[pair].known.values())
        return msgspec.structs.replace(self.aim.settings, seed=seed, known=known, **changes)

    def _end(self, ended: Ended) -> None:
        """Write down an order that has ended; one that was lost will be given out again."""
        order, answer = ended.order, ended.answer
        cause = answer.outcome.result.cause if answer else Cause.TASK_DIED
        if answer is None or cause in _LOST:
            self._tries[order.pair, order.number] += 1
            if self._tries[order.pair, order.number] < _TRIES:
                if order.number is None:
                    self._due.add(order.pair)
                return
            answer = answer or _impossible(order, self.aim.pairs[order.pair][0], ended.problem)
        self._tries.pop((order.pair, order.number), None)
        self._due.add(order.pair)
        at = round(self.worked_s, 1)
        if order.number is None:
            names = tuple(map(name_of, order.values))
            self._write(Shrunk(pair=order.pair, at=at, answer=answer, values=names))
            return
        kept = self.state.pairs[order.pair].without_known(answer)
        task = TaskEnded(pair=order.pair, number=order.number, at=at, answer=kept, cost=ended.cost)
        self._write(task)

    def _write(self, line: Line) -> None:
        self.ledger.append(line)
        self.on_line(self, line, self.state.add(line))


def seed_of(seed: int, pair: Pair, number: int) -> int:
    """Return the seed of a task: the same task of a campaign draws the same cases again."""
    text = f"{seed}/{pair.operation}/{pair.candidate}/{number}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


def _impossible(order: Order, operation: Operation, problem: str) -> Answer:
    """Return the answer to an order that no worker could carry out."""
    result = OperationResult(
        name=order.operation,
        section=operation.section,
        candidate=order.candidate.name,
        device=order.candidate.lane,
        verdict="UNVERIFIED",
        reason=f"{order.name} was lost {_TRIES} times: {problem}",
        cause=Cause.TASK_DIED,
    )
    # Its cases may pass or fail: each is kept as it was drawn.
    return Answer(outcome=Outcome(result, []), passing=order.values, seconds=0.0)
