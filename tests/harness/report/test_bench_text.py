"""The tables of the terminal: times by clock, ratios, worse timings."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.model.timing import BaselineResult
from attnproof.harness.report.shared.baseline import control_text
from attnproof.harness.report.shared.quantities import ratio_text, time_text
from attnproof.harness.report.terminal.bench import bench_text
from tests.harness.report.runs import with_bench


def test_each_clock_has_its_own_time_ratio_and_verdict(timed):
    bench = timed.bench
    timing, compared = bench.timings[0], bench.comparisons[0]
    device = msgspec.structs.replace(timing.host, median_ns=timing.host.median_ns / 7)
    timings = [msgspec.structs.replace(timing, device=device)]
    on_device = {"clock": "device", "ratio": 0.5, "low": 0.4, "high": 0.6, "verdict": "slower"}
    both = [compared, msgspec.structs.replace(compared, **on_device)]
    changed = with_bench(timed, timings=timings, comparisons=both)
    _, first, second, *_ = bench_text(changed).splitlines()
    assert time_text(timing.host.median_ns) in first
    assert ratio_text(compared.ratio) in first
    assert first.endswith(compared.verdict)
    assert second.split()[:2] == time_text(device.median_ns).split()
    assert second.endswith("0.500× (0.400 to 0.600) of vllm  slower")  # noqa: RUF001


def test_worse_timings_are_listed_the_largest_slowdown_first(slower):
    lines = bench_text(slower).splitlines()
    (place,) = [n for n, line in enumerate(lines) if line.endswith("2 slower or costlier")]
    first, second = lines[place + 1 : place + 3]
    assert first.endswith(": 1.18× the baseline's host time (1.15 to 1.22)")  # noqa: RUF001
    assert second.endswith("; allocations 3 to 4")


def test_only_counts_are_compared_with_a_baseline_of_another_machine(on_another_machine):
    head, entry = bench_text(on_another_machine).splitlines()[-2:]
    assert head == "no time was compared with baseline main: it is of another machine"
    assert entry.endswith(": allocations 3 to 4")


@pytest.mark.parametrize(("control", "said"), [(1.04, False), (0.97, False), (1.3, True)])
def test_a_change_of_the_control_is_reported(control, said):
    sentence = control_text(BaselineResult(state="compared", control=control))
    assert sentence.startswith("; the control takes 1.3") if said else sentence == ""
