"""A benchmark as text: the tables of the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from attnproof.harness.model.run import Run
from attnproof.harness.model.timing import Bench, Comparison, StepComparison, Steps, Timing
from attnproof.harness.report.shared.quantities import between, percent, ratio_text, time_text
from attnproof.harness.report.shared.ratios import (
    control_text,
    not_confirmed_text,
    worse,
    worse_text,
)

Row = tuple[str, ...]
_HEADINGS = ("operation", "workload", "candidate", "host", "device", "ratio", "verdict")
_STEP_HEADINGS = ("steps of", "candidate", "a step", "least to most", "geometric mean", "worst")


def bench_text(run: Run) -> str:
    """What was timed, what was not and why, and what the baseline says."""
    bench = run.bench
    assert bench is not None
    parts = [
        _aligned([_HEADINGS, *_rows(bench)]),
        _aligned([*step_rows(bench)]) if bench.steps else "",
        "\n".join(remarks(bench)),
    ]
    return "\n\n".join(part for part in parts if part)


def _rows(bench: Bench) -> Iterator[Row]:
    """A line for each timing and clock, beside it what it is compared with."""
    beside = {(c.operation, c.workload, c.candidate, c.clock): c for c in bench.comparisons}
    last = ("", "")
    for timing in bench.timings:
        key = (timing.operation, timing.workload.name)
        names = (
            timing.operation if timing.operation != last[0] else "",
            timing.workload.name if key != last else "",
            timing.candidate + _marks(timing),
        )
        host = time_text(timing.host.median_ns)
        yield (*names, host, "", *_said(beside.get((*key, timing.candidate, "host"))))
        if timing.device:
            device = time_text(timing.device.median_ns)
            yield ("", "", "", "", device, *_said(beside.get((*key, timing.candidate, "device"))))
        last = key


def _marks(timing: Timing) -> str:
    return f" ({', '.join(timing.deviations)})" if timing.deviations else ""


def _said(compared: Comparison | None) -> tuple[str, str]:
    """Ratio and verdict, nothing of what is compared with nobody."""
    if compared is None:
        return "", ""
    interval = between(compared.low, compared.high)
    ratio = f"{ratio_text(compared.ratio)} ({interval}) of {compared.peer}"
    return ratio, compared.verdict


def step_rows(bench: Bench) -> Iterator[Row]:
    """Heading first, then a line for each trace and candidate."""
    yield _STEP_HEADINGS
    compared = {(c.trace, c.candidate): c for c in bench.step_comparisons}
    for steps in bench.steps:
        beside = compared.get((steps.trace, steps.candidate))
        medians = _step_medians(steps)
        yield (
            f"{steps.trace} ({len(steps.steps)})",
            steps.candidate,
            time_text(median(medians)),
            f"{time_text(min(medians))} to {time_text(max(medians))}",
            _mean(beside) if beside else "",
            ratio_text(beside.worst) if beside else "",
        )


def _mean(beside: StepComparison) -> str:
    interval = between(beside.low, beside.high)
    return f"{ratio_text(beside.geometric_mean)} ({interval}) of {beside.peer}"


def _step_medians(steps: Steps) -> list[float]:
    return [median(step.ns) for step in steps.steps]


def remarks(bench: Bench) -> Iterator[str]:
    """What was left out and why, the noise floor, what the baseline says."""
    for operation, reason in dict.fromkeys(i for s in bench.steps for i in s.left_out.items()):
        yield f"not part of a step: {operation} ({reason})"
    for (candidate, reason), operations in _untimed(bench).items():
        named = ", ".join(operations[:3])
        more = f" and {len(operations) - 3} more" if len(operations) > 3 else ""
        yield f"not timed: {named}{more} of {candidate}: {reason}"
    noise = bench.noise
    yield (
        f"noise floor {percent(noise.floor)} from {noise.comparisons} timings of a function "
        f"against itself, smallest effect {percent(noise.minimum_effect)}"
    )
    yield from _beside_baseline(bench)


def _beside_baseline(bench: Bench) -> Iterator[str]:
    """How many timings got worse, then each of them; nothing where no baseline was asked for."""
    baseline, found = bench.baseline, worse(bench)
    if baseline.state == "compared":
        yield (
            f"baseline {baseline.name} of {baseline.created}: {len(baseline.regressions)} "
            f"timings compared, {len(found)} slower or costlier"
            f"{not_confirmed_text(baseline)}{control_text(baseline)}"
        )
    elif baseline.state != "not asked for":
        yield f"no time was compared with baseline {baseline.name}: {baseline.reason}"
    for r in found:
        what = worse_text(r, baseline.state)
        yield f"  {r.operation} of {r.candidate} on {r.workload}: {what}"


def _untimed(bench: Bench) -> dict[tuple[str, str], list[str]]:
    """Operations by candidate and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in bench.untimed:
        operations = groups.setdefault((one.candidate, one.reason), [])
        if one.operation not in operations:
            operations.append(one.operation)
    return groups


def _aligned(rows: list[Row]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
