"""Candidates in turn: A B, B A, A B ... in one process, until the intervals are tight.

What the machine does meanwhile (frequency, caches, neighbours) meets all of them alike,
and none is always the first. Every sample is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attnproof.harness.model.candidate import Lane
from attnproof.harness.timing.process.clocks import (
    DeviceClock,
    Thunk,
    host_clock,
    time_calls,
    time_each,
)
from attnproof.harness.timing.statistics import interval

_WARM_UP_CALLS = 3
_ROUNDS_BEFORE_TIGHT = 30
"""Fewer may all lie in one quiet moment, and look tighter than the next ones would."""
_MOST_CALLS = 10_000
_MOST_LAUNCHED_CALLS = 100
"""On a GPU: its queue of launches must not be full, or the host would wait in a sample."""


@dataclass(frozen=True)
class Contestant:
    """What takes part: a name, and how to get something that can be called and timed."""

    name: str
    make: Callable[[], Thunk]
    """Makes a call ready to run; never timed."""
    spent: bool = False
    """Whether a call can be run only once, as it writes its input: each gets a fresh one."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When to stop: intervals tight, time spent, or rounds enough."""

    seconds: float = 0.3
    """For all contestants together; the least rounds are made even so."""
    least_rounds: int = 10
    most_rounds: int = 400
    tight: float = 0.005
    """Half of an interval's width, relative to the median, at which more rounds tell no more."""


@dataclass
class Samples:
    """What one contestant took, a sample a round, in the order of the rounds."""

    calls: int
    """Calls that a host sample is the mean of."""
    host_ns: list[float] = field(default_factory=list)
    device_ns: list[float] = field(default_factory=list)
    """Of single calls on an empty cache; nothing without a GPU."""


def measure(contestants: Sequence[Contestant], budget: Budget, lane: Lane) -> list[Samples]:
    """Time the contestants in turn; one `Samples` each, with equally many rounds.

    Call it in `quiet()`. InfrastructureError if the clock is too coarse; what a
    contestant raises passes through.
    """
    clock = DeviceClock() if lane == "cuda" else None
    share = budget.seconds / budget.least_rounds / max(1, len(contestants))
    runners = [_Runner(contestant, share, clock) for contestant in contestants]
    end = time.monotonic() + budget.seconds
    look_at = max(budget.least_rounds, _ROUNDS_BEFORE_TIGHT)
    for number in range(budget.most_rounds):
        for runner in runners if number % 2 == 0 else reversed(runners):
            runner.run()
        done = number + 1
        if done >= budget.least_rounds and time.monotonic() >= end:
            break
        if done >= look_at:
            if all(runner.is_tight(budget.tight) for runner in runners):
                break
            look_at = math.ceil(1.5 * done)
    return [runner.samples for runner in runners]


class _Runner:
    """One contestant, warm, and its samples so far."""

    def __init__(self, contestant: Contestant, share: float, clock: DeviceClock | None) -> None:
        self._contestant = contestant
        self._clock = clock
        self._thunk = contestant.make()
        for _ in range(_WARM_UP_CALLS):  # compiles, fills caches
            self._time(1)
        self.samples = Samples(self._calibrate(share))

    def _calibrate(self, share: float) -> int:
        """How many calls one sample takes, if making them may take `share` seconds."""
        begin = time.perf_counter_ns()
        once = min(self._time(1) for _ in range(3))
        with_making = (time.perf_counter_ns() - begin) / 3
        least = host_clock().least_sample_ns
        calls = math.ceil(least / max(once, 1))
        if self._contestant.spent:
            calls = min(calls, max(1, int(share * 1e9 / with_making)))
        elif calls > 1:  # a call in a row of them is faster than one alone
            calls = math.ceil(least / max(self._time(min(calls, _MOST_CALLS)), 1))
        return min(calls, _MOST_CALLS if self._clock is None else _MOST_LAUNCHED_CALLS)

    def run(self) -> None:
        """One sample, on a GPU one of each clock.

        A call that is not timed comes first: caches hold what ran before, and every second
        time that is somebody else.
        """
        self._time(1)
        self.samples.host_ns.append(self._time(self.samples.calls))
        if self._clock is not None:
            thunk = self._contestant.make() if self._contestant.spent else self._thunk
            self._clock.wait()
            taken = self._clock.sample(thunk, self.samples.host_ns[-1])
            self.samples.device_ns.append(taken)

    def _time(self, calls: int) -> float:
        thunks = [self._contestant.make() for _ in range(calls)] if self._contestant.spent else []
        if self._clock is not None:
            self._clock.wait()
        taken = time_each(thunks, calls) if thunks else time_calls(self._thunk, calls)
        if self._clock is not None:
            self._clock.wait()
        return taken

    def is_tight(self, width: float) -> bool:
        """Whether the intervals of all clocks are narrow enough."""
        for samples in (self.samples.host_ns, self.samples.device_ns):
            if samples:
                found = interval(samples)
                if found.high_ns - found.low_ns > 2 * width * found.median_ns:
                    return False
        return True
