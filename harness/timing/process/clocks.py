"""The clocks of the host and of a GPU, in nanoseconds.

The host's clock is examined before use: its resolution and the cost of reading it decide
how long a sample must last. On a GPU a call is also timed by events, with the L2 cache
overwritten before it and the host ahead of the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from attnproof.harness.model.call import Thunk
from attnproof.harness.running.errors import InfrastructureError

"""A call with its arguments bound."""
Read = Callable[[], int]
_READINGS = 2000
_MOST_READINGS = 5_000_000
"""Readings, about a second, after which a clock that has not moved counts as stopped."""
_SHORTEST_SAMPLE_NS = 50_000.0
_STEPS_A_SAMPLE = 500
"""Least length of a sample, in steps or readings of the clock: an error of 0.2 %."""
_LONGEST_SAMPLE_NS = 50e6
_SLEEP_CYCLES = 2_000_000
"""Cycles for which the device waits for the host's launches, about a millisecond."""
_CYCLES_A_NS = 2


class HostClock(NamedTuple):
    """Properties of a clock, measured by reading it many times."""

    resolution_ns: float
    """Smallest step between two readings."""
    overhead_ns: float
    """Cost of one reading."""

    @property
    def least_sample_ns(self) -> float:
        """Length of a sample in which neither a step nor a reading of the clock matters."""
        return max(_SHORTEST_SAMPLE_NS, _STEPS_A_SAMPLE * max(self))


def examine(read: Read = time.perf_counter_ns) -> HostClock:
    """Measure resolution and overhead of a clock (InfrastructureError if it is unusable)."""
    readings = [read() for _ in range(_READINGS)]
    steps = [after - before for before, after in pairwise(readings)]
    forward = [step for step in steps if step > 0]
    clock = HostClock(min(forward, default=_next_step(read)), max(0.0, median(steps)))
    if clock.least_sample_ns > _LONGEST_SAMPLE_NS:
        raise InfrastructureError(
            f"the clock is too coarse: it moves in steps of {clock.resolution_ns / 1e6:.3g} ms, "
            f"and nothing can be timed beyond {_LONGEST_SAMPLE_NS / _STEPS_A_SAMPLE / 1e6:.3g} ms; "
            "use a machine whose time.perf_counter_ns is finer"
        )
    return clock


def _next_step(read: Read) -> float:
    """Return the next step of a clock that has not moved yet (InfrastructureError if never)."""
    first = read()
    for _ in range(_MOST_READINGS):
        step = read() - first
        if step > 0:
            return step
    raise InfrastructureError(
        "the clock stands still: time.perf_counter_ns never moved; nothing can be timed here"
    )


@lru_cache(maxsize=1)
def host_clock() -> HostClock:
    """Return the clock of this process, examined once (InfrastructureError as `examine`)."""
    return examine()


def time_calls(
    thunks: Sequence[Thunk], kept: Sequence[int] = (), read: Read = time.perf_counter_ns
) -> tuple[float, list[Any]]:
    """Return the nanoseconds of one call, the mean of all, and the results of the calls `kept`.

    `kept` are ascending indices. Other results are dropped at once, as most callers do: keeping
    all of them would make every call allocate new memory.
    """
    parts, start = [], 0
    for index in kept:
        parts.append((thunks[start:index], thunks[index]))
        start = index + 1
    rest = thunks[start:]
    results: list[Any] = []
    keep = results.append
    begin = read()
    for dropped, chosen in parts:
        for thunk in dropped:
            thunk()
        keep(chosen())
    for thunk in rest:
        thunk()
    return (read() - begin) / len(thunks), results


class DeviceClock:
    """Clock of single calls on the GPU, by CUDA events."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        size = int(torch.cuda.get_device_properties(0).L2_cache_size)
        self._flush = torch.empty(3 * size, dtype=torch.uint8, device="cuda")

    def wait(self) -> None:
        """Wait until the device has finished everything that was launched."""
        self._torch.cuda.synchronize()

    def sample(self, thunk: Thunk, host_ns: float) -> tuple[float, Any]:
        """Return the nanoseconds of one call on the device with an empty L2 cache, and its result.

        `host_ns` is the call's time on the host.
        """
        cuda = self._torch.cuda
        first, last = (cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        # The device sleeps until the host has launched everything; otherwise the host's work
        # between launches would count as the device's.
        cuda._sleep(max(_SLEEP_CYCLES, int(2 * _CYCLES_A_NS * host_ns)))
        first.record()
        result = thunk()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e6, result
