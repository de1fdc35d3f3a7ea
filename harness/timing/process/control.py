"""A fixed piece of work: what it takes tells what the machine is doing, whatever is measured.

Two runs on one machine differ by clock frequency and by what else runs there. Both take
samples of this between their measurements, and are compared in units of them.
"""

from __future__ import annotations

import time
from functools import lru_cache
from statistics import median
from typing import Any

_STEPS = 1200
_NUMBERS = 4000
_WARM_UP_TIMES = 6
"""After other work the first five took up to fifteen times as long as the later ones."""
_TIMES = 25


@lru_cache(maxsize=1)
def _material() -> tuple[Any, Any]:
    import numpy as np
    import torch

    numbers = (np.arange(_NUMBERS, dtype=np.int64) * 7919) % 1009
    return numbers, torch.from_numpy(numbers.copy())


def _work() -> int:
    """What metadata is made of: a loop of the interpreter, arrays, small operators of torch."""
    numbers, tensor = _material()
    total = 0
    for step in range(_STEPS):
        total += step & 3
    ordered = numbers.copy()
    ordered.sort()
    summed = (tensor + 1).cumsum(0)
    return total + int(ordered[-1]) + int(summed[-1])


def sample() -> float:
    """Nanoseconds that the work takes now: the median of some times, when caches are warm."""
    for _ in range(_WARM_UP_TIMES):
        _work()
    return median(_once() for _ in range(_TIMES))


def _once() -> float:
    begin = time.perf_counter_ns()
    _work()
    return float(time.perf_counter_ns() - begin)
