"""The terminal's table says of each number what it is of."""

from __future__ import annotations

import msgspec

from harness.report.bench_text import bench_text
from harness.report.quantities import ratio_text, time_text


def test_each_clock_has_its_own_time_ratio_and_verdict(timed):
    bench = timed.bench
    timing, compared = bench.timings[0], bench.comparisons[0]
    device = msgspec.structs.replace(timing.host, median_ns=timing.host.median_ns / 7)
    bench.timings = [msgspec.structs.replace(timing, device=device)]
    on_device = {"clock": "device", "ratio": 0.5, "low": 0.4, "high": 0.6, "verdict": "slower"}
    bench.comparisons = [compared, msgspec.structs.replace(compared, **on_device)]
    _, first, second, *_ = bench_text(timed).splitlines()
    assert time_text(timing.host.median_ns) in first
    assert ratio_text(compared.ratio) in first
    assert first.endswith(compared.verdict)
    assert second.split()[:2] == time_text(device.median_ns).split()
    assert second.endswith("0.500× (0.400 to 0.600) of vllm  slower")  # noqa: RUF001
