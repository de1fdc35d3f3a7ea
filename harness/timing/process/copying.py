"""The time of a copy of as many bytes as a call moves: how near a call is to the memory's speed."""

from __future__ import annotations

from functools import partial

import torch

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.timing import Work
from attnproof.harness.timing.process.comparison import CandidateCalls, TimedCall
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.statistics import interval

LEAST_BYTES = 1 << 16
"""Bytes below which the time of a call is that of its launches and dispatches."""
_BUDGET = Budget(seconds=0.05, most_rounds=40)


def work_of(calls: CandidateCalls, lane: Lane) -> Work | None:
    """Return the work of a call and the time of a copy; None if it is not declared or small.

    Call it in `steady()`.
    """
    count = calls.operation.bench.work
    amount = None if count is None else count(*calls.call_and_result())
    if amount is None or amount.bytes < LEAST_BYTES:
        return None
    [copied] = measure([Contestant("copy", partial(_copy, amount.bytes, lane))], _BUDGET, lane)
    return Work(
        bytes=amount.bytes,
        flops=amount.flops,
        copy_host_ns=interval(copied.host_ns).median_ns,
        copy_device_ns=interval(copied.device_ns).median_ns if copied.device_ns else None,
    )


def _copy(count: int, lane: Lane) -> TimedCall:
    """Return a copy by torch that reads half of the bytes and writes the other half."""
    device = "cpu" if lane == "interpreter" else lane
    # Memory of `torch.zeros` would be made while it is copied.
    source, target = torch.ones(2, count // 2, dtype=torch.uint8, device=device)
    return TimedCall(partial(target.copy_, source), touch=lambda: None, nbytes=count)
