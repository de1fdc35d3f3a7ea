"""Times of every candidate on every operation and workload; these two are a group.

The last result of the timed calls is compared with the verified one: it shows that the timed
function does the same work as the verified one.
"""

from __future__ import annotations

from collections import deque
from itertools import cycle
from typing import Any

import msgspec
import pytest

from attnproof.harness.timing.plan.timetable import TimedCase
from attnproof.harness.timing.process.comparison import (
    CandidateCalls,
    TimedCall,
    expected_outputs,
)
from attnproof.harness.timing.process.counters import count

_ROUNDS_OF_SPENT_CALLS = 40
_SETS = 4
"""Inputs that take turns; answers remembered for longer are found by `attnproof bench` only."""


@pytest.mark.benchmark(max_time=0.08, min_rounds=5, disable_gc=True, warmup=False)
def test_speed(timed: TimedCase, name: str, entrants: Any, benchmark: Any) -> None:
    """Verify the case, then time the candidate on it."""
    contestant = entrants.contestants[name]
    deviations = contestant.verified(timed)
    benchmark.group = group = f"{timed.operation.name}, {timed.workload.name}"
    benchmark.extra_info |= {
        "case_id": timed.case.id,
        "requests": timed.workload.requests,
        "tokens": timed.workload.tokens,
        "deviations": list(deviations),
    }
    calls = _ready(timed, contestant.function(timed), deviations)
    benchmark.extra_info["costs"] = msgspec.to_builtins(count(lambda: calls.make().run, "cpu"))
    # pytest-benchmark makes one more call after the timed ones.
    latest: deque[tuple[TimedCall, Any]] = deque(maxlen=2)

    def run(call: TimedCall) -> None:
        latest.append((call, call.run()))

    if calls.is_single_use():
        benchmark.pedantic(
            run,
            setup=lambda: ((calls.make(),), {}),
            rounds=_ROUNDS_OF_SPENT_CALLS,
            warmup_rounds=3,
        )
    else:
        following = cycle([calls.make() for _ in range(_SETS)]).__next__
        benchmark(lambda: run(following()))
    for last, result in latest:
        if mismatch := last.mismatch(result):
            pytest.fail(f"returned another result while it was timed: {mismatch.text}")
    if benchmark.stats is None:  # --benchmark-disable
        return
    entrants.medians[group, name] = own = benchmark.stats.stats.median
    peer = entrants.medians.get((group, entrants.peer))
    if name != entrants.peer and peer is not None:
        benchmark.extra_info |= {"against": entrants.peer, "ratio": peer / own}


def _ready(timed: TimedCase, function: Any, deviations: tuple[str, ...]) -> CandidateCalls:
    """Return calls that work; skip the test if they raise as a known deviation."""
    expected = expected_outputs(timed.operation, timed.case, "cpu")
    try:
        calls = CandidateCalls(
            timed.operation, timed.case, function, "cpu", expected, deviates=bool(deviations)
        )
        calls.make().run()
    except Exception:
        if deviations:
            pytest.skip(f"raises, a known deviation: {', '.join(deviations)}")
        raise
    return calls
