"""The control: a fixed piece of work whose time shows the load of the machine.

Two runs on one machine differ by clock frequency and by other processes. Both sample the
control between their measurements, and are compared in units of its time.
"""

from __future__ import annotations

import time
from functools import lru_cache
from statistics import median
from typing import Any

_STEPS = 1200
_NUMBERS = 4000
_WARM_UP_TIMES = 6
"""After other work the first five calls took up to fifteen times as long as later ones."""
_TIMES = 25


@lru_cache(maxsize=1)
def _material() -> tuple[Any, Any]:
    import numpy as np
    import torch

    numbers = (np.arange(_NUMBERS, dtype=np.int64) * 7919) % 1009
    return numbers, torch.from_numpy(numbers.copy())


def _work() -> int:
    """Do the kinds of work that metadata needs: a Python loop, arrays, small torch operators."""
    numbers, tensor = _material()
    total = 0
    for step in range(_STEPS):
        total += step & 3
    ordered = numbers.copy()
    ordered.sort()
    summed = (tensor + 1).cumsum(0)
    return total + int(ordered[-1]) + int(summed[-1])


def sample() -> float:
    """Return the time of the work in nanoseconds: the median of calls with warm caches."""
    for _ in range(_WARM_UP_TIMES):
        _work()
    return median(_once() for _ in range(_TIMES))


def _once() -> float:
    begin = time.perf_counter_ns()
    _work()
    return float(time.perf_counter_ns() - begin)
