"""Rates beside a call's own: a copy of as many bytes, a large copy, a large product of matrices.

They say how near a call is to the speed of the memory or of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.timing import MachineRates, Work
from attnproof.harness.timing.process.comparison import CandidateCalls, TimedCall
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.statistics import interval

LEAST_BYTES = 1 << 16
"""Bytes below which the time of a call is that of its launches and dispatches."""
_BUDGET = Budget(seconds=0.05, most_rounds=40)
_LARGE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 32}
"""Bytes of a copy that no cache holds."""
_MATRIX = {"cpu": (512, torch.float32), "cuda": (8192, torch.bfloat16)}
"""Rows of square matrices that keep all units of a GPU, or one core, busy, and their dtype."""


def work_of(calls: CandidateCalls, lane: Lane) -> Work | None:
    """Return the work of a call and the time of a copy; None if it is not declared or small.

    Call it in `steady()`.
    """
    count = calls.operation.bench.work
    amount = None if count is None else count(*calls.call_and_result())
    if amount is None or amount.bytes < LEAST_BYTES:
        return None
    host_ns, device_ns = _medians(partial(_copy, amount.bytes, lane), lane)
    return Work(
        bytes=amount.bytes,
        flops=amount.flops,
        copy_host_ns=host_ns,
        copy_device_ns=device_ns,
        machine=machine_rates(lane) if amount.flops else None,
    )


@cache
def machine_rates(lane: Lane) -> MachineRates:
    """Measure the rates of this process's device once. Call it in `steady()`."""
    large, (rows, _) = _LARGE_BYTES[lane], _MATRIX[lane]
    copied, multiplied = (
        device_ns or host_ns
        for host_ns, device_ns in (
            _medians(partial(_copy, large, lane), lane),
            _medians(partial(_product, lane), lane),
        )
    )
    return MachineRates(
        bytes_per_second=large / copied * 1e9, flops_per_second=2 * rows**3 / multiplied * 1e9
    )


def _medians(make: Callable[[], TimedCall], lane: Lane) -> tuple[float, float | None]:
    """Return the median nanoseconds of a call on the host, and on the device if there is one."""
    [taken] = measure([Contestant("torch", make)], _BUDGET, lane)
    device = interval(taken.device_ns).median_ns if taken.device_ns else None
    return interval(taken.host_ns).median_ns, device


def _copy(count: int, lane: Lane) -> TimedCall:
    """Return a copy by torch that reads half of the bytes and writes the other half."""
    device = "cpu" if lane == "interpreter" else lane
    # Memory of `torch.zeros` would be made while it is copied.
    source, target = torch.ones(2, count // 2, dtype=torch.uint8, device=device)
    return TimedCall(partial(target.copy_, source), touch=lambda: None, nbytes=count)


def _product(lane: Lane) -> TimedCall:
    """Return a product of two square matrices by torch."""
    rows, dtype = _MATRIX[lane]
    left, right = torch.ones(2, rows, rows, dtype=dtype, device=lane)
    out = torch.empty_like(left)
    run = partial(torch.mm, left, right, out=out)
    return TimedCall(run, touch=lambda: None, nbytes=3 * left.nbytes)
