"""Time candidates in turn, A B, B A, A B ..., in one process until the intervals are tight.

Changes of the machine (frequency, caches, other processes) then affect all of them alike,
and none is always the first. Every sample is kept.

Each sample has new inputs, equal to the verified ones, so that an answer remembered by the
identity or address of an input saves no time. One result of each sample, at a random
position, is compared with the verified one, outside the clock.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from attnproof.harness.model.call import Thunk
from attnproof.harness.model.candidate import Lane
from attnproof.harness.timing.process.clocks import DeviceClock, host_clock, time_calls
from attnproof.harness.timing.process.comparison import TimedCall, WrongResultError
from attnproof.harness.timing.statistics import FEWEST_SAMPLES, interval

_WARM_UP_CALLS = 1
_ROUNDS_BEFORE_TIGHT = 30
"""Least rounds before tight intervals count: fewer may all fall into one quiet moment."""
_MOST_CALLS = 10_000
_MOST_LAUNCHED_CALLS = 100
"""Calls of a sample on a GPU: with a full queue of launches the host would wait."""
_KEPT = 2
"""Results of a sample that are kept, one of which is compared: more would need more memory."""
_PRIMING_CALLS = 3
"""Untimed calls before a sample: after one call, large inputs took up to 10 % longer."""
_LONG_NS = 5e6
"""Time of a call from which a sample has one untimed call only."""
_FEWEST_SETS = 4
"""Least inputs of a sample of several calls, if they fit into memory."""
_MAKING_SHARE = 0.25
"""Part of a contestant's share of the time in which inputs are made for a sample."""
_MOST_BYTES = 64 << 20
"""Memory of the inputs of one sample."""
_RETIRED_BYTES = 256 << 10
"""Memory of earlier inputs that stays in use, so that new ones get other addresses.

With 128 MiB calls took up to 40 % longer: each input was in memory that no cache had seen.
"""
_unknown = random.SystemRandom()
"""Source of the positions of kept results, which no code can know beforehand."""


@dataclass(frozen=True)
class Contestant:
    """One participant: a name, and a maker of calls to time."""

    name: str
    make: Callable[[], TimedCall]
    """Function that returns a call on new inputs; it is not timed itself."""
    single_use: bool = False
    """True if a call can run only once, as it writes its input."""

    def thunk(self) -> Thunk:
        """Return a call that is not compared."""
        return self.make().run


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of a measurement: it ends when intervals are tight, or a limit is reached."""

    seconds: float = 0.3
    """Seconds for all contestants together, warm-up included."""
    least_rounds: int = 10
    """Least rounds in up to twice the time; `FEWEST_SAMPLES` of them are made in any case."""
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

    Call it in `steady()`. Raises InfrastructureError if the clock is too coarse,
    WrongResultError if a result is not the verified one, and whatever a contestant raises.
    """
    end = time.monotonic() + budget.seconds
    fewest = min(FEWEST_SAMPLES, budget.least_rounds)
    clock = DeviceClock() if lane == "cuda" else None
    share = budget.seconds / budget.least_rounds / max(1, len(contestants))
    runners = [_Runner(contestant, share, clock) for contestant in contestants]
    _level([runner.samples for runner in runners if not runner.single_use])
    next_check = max(budget.least_rounds, _ROUNDS_BEFORE_TIGHT)
    for number in range(budget.most_rounds):
        for runner in runners if number % 2 == 0 else reversed(runners):
            runner.run()
        done = number + 1
        late_s = time.monotonic() - end
        if late_s >= (0 if done >= budget.least_rounds else budget.seconds) and done >= fewest:
            break
        if done >= next_check:
            if all(runner.is_tight(budget.tight) for runner in runners):
                break
            next_check = math.ceil(1.5 * done)
    return [runner.samples for runner in runners]


def _level(samples: Sequence[Samples]) -> None:
    """Give contestants of about the same speed equally many calls in a sample.

    Calls share the inputs of a sample, and a call of 50 ns on an input that was used just before
    takes half the time of a first one.
    """
    most = max((series.calls for series in samples), default=0)
    for series in samples:
        if 2 * series.calls >= most:
            series.calls = most


class _Runner:
    """One contestant after its warm-up, with its samples so far."""

    def __init__(self, contestant: Contestant, share: float, clock: DeviceClock | None) -> None:
        self._contestant = contestant
        self._clock = clock
        self._share = share
        self._retired: deque[TimedCall] = deque()
        self._retired_bytes = 0
        self._making_s = math.inf
        self.single_use = contestant.single_use
        self._priming_calls = 0
        for _ in range(_WARM_UP_CALLS):  # compile, fill caches
            self._sample(1)
        self._priming_calls = 1
        self.samples = Samples(self._calibrate())

    def _calibrate(self) -> int:
        """Return the calls of one sample; if they run once, making them takes `share` at most."""
        begin = time.perf_counter_ns()
        once = min(self._sample(1) for _ in range(3))
        with_making = (time.perf_counter_ns() - begin) / 3
        most = _MOST_CALLS if self._clock is None else _MOST_LAUNCHED_CALLS
        least = host_clock().least_sample_ns
        calls = math.ceil(least / max(once, 1))
        self._priming_calls = _PRIMING_CALLS if once < _LONG_NS else 1
        if self._contestant.single_use:
            calls = min(calls, max(1, int(self._share * 1e9 / with_making)))
        elif calls > 1:  # a call among many is faster than a single one
            calls = math.ceil(least / max(self._sample(min(calls, most)), 1))
        return min(calls, most)

    def run(self) -> None:
        """Take one sample, on a GPU one of each clock (WrongResultError)."""
        self.samples.host_ns.append(self._sample(self.samples.calls))
        if self._clock is not None:
            call = self._make()
            self._clock.wait()
            taken, result = self._clock.sample(call.run, self.samples.host_ns[-1])
            self._check(call, result)
            self.samples.device_ns.append(taken)

    def _sample(self, calls: int) -> float:
        """Return the nanoseconds of one call, the mean of `calls` on inputs made for them."""
        untimed = self._untimed_calls()
        timed_calls = [self._make() for _ in range(self._sets(calls))]
        order = (timed_calls * -(-calls // len(timed_calls)))[:calls]
        if len(timed_calls) < calls:
            random.shuffle(order)
        kept = sorted(_unknown.sample(range(calls), min(calls, _KEPT)))
        thunks = [call.run for call in order]
        for call in timed_calls:
            call.touch()
        for call in timed_calls:  # after the tensors, which may displace objects from the caches
            call.read_fields()
        self._prime(untimed)
        if self._clock is not None:
            self._clock.wait()
        taken, results = time_calls(thunks, kept)
        if self._clock is not None:
            self._clock.wait()
        index, result = _unknown.choice(list(zip(kept, results, strict=True)))
        self._check(order[index], result)
        return taken

    def _untimed_calls(self) -> list[TimedCall]:
        """Return calls that ran before, new ones if each runs only once."""
        count = self._priming_calls
        used = [] if self._contestant.single_use else [*islice(reversed(self._retired), count)]
        return used + [self._make() for _ in range(count - len(used))]

    def _prime(self, calls: list[TimedCall]) -> None:
        """Make untimed calls: before them the caches may hold data of another contestant.

        Their results are alive together, so that memory for the results that a sample keeps has
        been in use before.
        """
        results = [call.run() for call in calls]
        for first, result in zip(calls[:1], results, strict=False):
            self._check(first, result)

    def _sets(self, calls: int) -> int:
        """Return the number of inputs to make for a sample: one for each call if there is time."""
        if self._contestant.single_use or calls == 1:
            return calls
        in_time = int(_MAKING_SHARE * self._share / self._making_s)
        in_memory = _MOST_BYTES // self._retired[-1].nbytes
        return max(1, min(calls, max(_FEWEST_SETS, in_time), in_memory))

    def _make(self) -> TimedCall:
        """Make a call; calls made before stay alive, so that no address is used again soon."""
        begin = time.perf_counter()
        call = self._contestant.make()
        self._making_s = min(self._making_s, time.perf_counter() - begin)
        self._retired.append(call)
        self._retired_bytes += call.nbytes
        while self._retired_bytes > _RETIRED_BYTES and len(self._retired) > _PRIMING_CALLS:
            self._retired_bytes -= self._retired.popleft().nbytes
        return call

    def _check(self, call: TimedCall, result: Any) -> None:
        """Compare a result with the verified one (WrongResultError)."""
        mismatch = call.mismatch(result)
        if mismatch is not None:
            raise WrongResultError(self._contestant.name, mismatch)

    def is_tight(self, width: float) -> bool:
        """True if the intervals of all clocks are narrow enough."""
        for samples in (self.samples.host_ns, self.samples.device_ns):
            if samples:
                bounds = interval(samples)
                if bounds.high_ns - bounds.low_ns > 2 * width * bounds.median_ns:
                    return False
        return True
