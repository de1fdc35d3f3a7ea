"""Times of every candidate on every operation and workload; these two are a group."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from attnproof.harness.timing.plan.timetable import TimedCase
from attnproof.harness.timing.process.binding import is_single_use
from attnproof.harness.timing.process.counters import count

_ROUNDS_OF_SPENT_CALLS = 40


@pytest.mark.benchmark(max_time=0.08, min_rounds=5, disable_gc=True, warmup=False)
def test_speed(timed: TimedCase, name: str, entrants: Any, benchmark: Any) -> None:
    contestant = entrants.contestants[name]
    deviations = contestant.verified(timed)
    operation, function = timed.operation, contestant.function(timed)

    def make() -> Any:
        return operation.call.bind(function, operation.call.prepare(timed.case, 0, "cpu"))

    benchmark.group = group = f"{operation.name}, {timed.workload.name}"
    benchmark.extra_info |= {
        "case_id": timed.case.id,
        "requests": timed.workload.requests,
        "tokens": timed.workload.tokens,
        "deviations": list(deviations),
    }
    thunk = _ready(make, deviations)
    benchmark.extra_info["costs"] = msgspec.to_builtins(count(make, "cpu"))
    if is_single_use(operation, function, operation.call.prepare(timed.case, 0, "cpu")):
        benchmark.pedantic(
            lambda call: call(),
            setup=lambda: ((make(),), {}),
            rounds=_ROUNDS_OF_SPENT_CALLS,
            warmup_rounds=3,
        )
    else:
        benchmark(thunk)
    if benchmark.stats is None:  # --benchmark-disable
        return
    entrants.medians[group, name] = own = benchmark.stats.stats.median
    peer = entrants.medians.get((group, entrants.peer))
    if name != entrants.peer and peer is not None:
        benchmark.extra_info |= {"against": entrants.peer, "ratio": peer / own}


def _ready(make: Any, deviations: tuple[str, ...]) -> Any:
    """Return a call that works; skip the test if it raises as a known deviation."""
    thunk = make()
    try:
        thunk()
    except Exception:
        if deviations:
            pytest.skip(f"raises, a known deviation: {', '.join(deviations)}")
        raise
    return make()
