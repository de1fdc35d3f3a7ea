"""Time candidates in turn, A B, B A, A B ..., in one process until the intervals are tight.

Changes of the machine (frequency, caches, other processes) then affect all of them alike,
and none is always the first. Every sample is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attnproof.harness.model.call import Thunk
from attnproof.harness.model.candidate import Lane
from attnproof.harness.timing.process.clocks import (
    DeviceClock,
    host_clock,
    time_calls,
    time_each,
)
from attnproof.harness.timing.statistics import interval

_WARM_UP_CALLS = 3
_ROUNDS_BEFORE_TIGHT = 30
"""Least rounds before tight intervals count: fewer may all fall into one quiet moment."""
_MOST_CALLS = 10_000
_MOST_LAUNCHED_CALLS = 100
"""Calls of a sample on a GPU: with a full queue of launches the host would wait."""


@dataclass(frozen=True)
class Contestant:
    """One participant: a name, and a maker of calls to time."""

    name: str
    make: Callable[[], Thunk]
    """Function that returns a call, ready to run; it is not timed itself."""
    single_use: bool = False
    """True if a call can run only once, as it writes its input: each is made anew."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a measurement: it ends when intervals are tight, or a limit is reached."""

    seconds: float = 0.3
    """Seconds for all contestants together; the least rounds are made in any case."""
    least_rounds: int = 10
    most_rounds: int = 400
    tight: float = 0.005
    """Half of an interval's width, relative to the median, at which it counts as tight."""


@dataclass
class Samples:
    """Times of one contestant: one sample a round, in the order of the rounds."""

    calls: int
    """Calls of a host sample, which is their mean."""
    host_ns: list[float] = field(default_factory=list)
    device_ns: list[float] = field(default_factory=list)
    """Times of single calls with an empty L2 cache; none without a GPU."""


def measure(contestants: Sequence[Contestant], budget: Budget, lane: Lane) -> list[Samples]:
    """Time the contestants in turn; return one `Samples` each, with equally many rounds.

    Call it in `steady()`. Raises InfrastructureError if the clock is too coarse, and
    whatever a contestant raises.
    """
    clock = DeviceClock() if lane == "cuda" else None
    share = budget.seconds / budget.least_rounds / max(1, len(contestants))
    runners = [_Runner(contestant, share, clock) for contestant in contestants]
    end = time.monotonic() + budget.seconds
    next_check = max(budget.least_rounds, _ROUNDS_BEFORE_TIGHT)
    for number in range(budget.most_rounds):
        for runner in runners if number % 2 == 0 else reversed(runners):
            runner.run()
        done = number + 1
        if done >= budget.least_rounds and time.monotonic() >= end:
            break
        if done >= next_check:
            if all(runner.is_tight(budget.tight) for runner in runners):
                break
            next_check = math.ceil(1.5 * done)
    return [runner.samples for runner in runners]


class _Runner:
    """One contestant after its warm-up, with its samples so far."""

    def __init__(self, contestant: Contestant, share: float, clock: DeviceClock | None) -> None:
        self._contestant = contestant
        self._clock = clock
        self._thunk = contestant.make()
        for _ in range(_WARM_UP_CALLS):  # compile, fill caches
            self._time(1)
        self.samples = Samples(self._calibrate(share))

    def _calibrate(self, share: float) -> int:
        """Return the calls of one sample; making them takes at most `share` seconds."""
        begin = time.perf_counter_ns()
        once = min(self._time(1) for _ in range(3))
        with_making = (time.perf_counter_ns() - begin) / 3
        least = host_clock().least_sample_ns
        calls = math.ceil(least / max(once, 1))
        if self._contestant.single_use:
            calls = min(calls, max(1, int(share * 1e9 / with_making)))
        elif calls > 1:  # a call among many is faster than a single one
            calls = math.ceil(least / max(self._time(min(calls, _MOST_CALLS)), 1))
        return min(calls, _MOST_CALLS if self._clock is None else _MOST_LAUNCHED_CALLS)

    def run(self) -> None:
        """Take one sample, on a GPU one of each clock."""
        self._time(1)  # untimed: before it the caches may hold data of another contestant
        self.samples.host_ns.append(self._time(self.samples.calls))
        if self._clock is not None:
            thunk = self._contestant.make() if self._contestant.single_use else self._thunk
            self._clock.wait()
            taken = self._clock.sample(thunk, self.samples.host_ns[-1])
            self.samples.device_ns.append(taken)

    def _time(self, calls: int) -> float:
        thunks = (
            [self._contestant.make() for _ in range(calls)] if self._contestant.single_use else []
        )
        if self._clock is not None:
            self._clock.wait()
        taken = time_each(thunks, calls) if thunks else time_calls(self._thunk, calls)
        if self._clock is not None:
            self._clock.wait()
        return taken

    def is_tight(self, width: float) -> bool:
        """True if the intervals of all clocks are narrow enough."""
        for samples in (self.samples.host_ns, self.samples.device_ns):
            if samples:
                found = interval(samples)
                if found.high_ns - found.low_ns > 2 * width * found.median_ns:
                    return False
        return True
