"""A benchmark's timings and steps as rows of data, which every format prints."""

from __future__ import annotations

from typing import Final, NamedTuple

from attnproof.harness.model.timing import (
    Bench,
    Clock,
    Comparison,
    Interval,
    StepComparison,
    Steps,
    Timing,
)
from attnproof.harness.report.shared.quantities import between, digits, median, percent, ratio_text

CLOCKS: Final[tuple[Clock, ...]] = ("host", "device")


class TimingRow(NamedTuple):
    """One timing by one clock, and its comparisons with the peers."""

    timing: Timing
    clock: Clock
    interval: Interval
    comparisons: tuple[Comparison, ...]
    """Empty for a peer itself, and for a candidate timed alone."""

    @property
    def operation(self) -> str:
        """Name of the operation."""
        return self.timing.operation

    @property
    def candidate(self) -> str:
        """Name of the candidate."""
        return self.timing.candidate

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return self.timing.workload.name

    @property
    def rate(self) -> Rate | None:
        """Bytes and operations a second, None where they do not decide the time."""
        work, ns = self.timing.work, self.interval.median_ns
        copy_ns = work and (work.copy_host_ns if self.clock == "host" else work.copy_device_ns)
        if not work or not copy_ns or ns <= 0:
            return None
        flops = work.flops / ns / 1e3 if work.flops else None
        peak = work.machine.flops_per_second / 1e12 if work.machine else None
        of_matmul = flops / peak if flops and peak else None
        return Rate(work.bytes, work.bytes / ns, copy_ns / ns, flops, of_matmul)


class Rate(NamedTuple):
    """Bandwidth and floating-point rate of a call."""

    bytes: int
    gigabytes_per_second: float
    of_copy: float
    """Its bandwidth divided by that of a copy by torch of as many bytes."""
    teraflops_per_second: float | None
    """None if floating-point operations are not counted."""
    of_matmul: float | None = None
    """Its floating-point rate divided by that of a large product of matrices by torch."""

    @property
    def text(self) -> str:
        """The rate, such as "12.3 GB/s, 61 % of a copy, 0.12 TFLOP/s, 40 % of a product"."""
        text = f"{digits(self.gigabytes_per_second)} GB/s, {percent(self.of_copy)} of a copy"
        flops = self.teraflops_per_second
        if flops is None:
            return text
        rate = f"{digits(flops)} TFLOP/s" if flops >= 0.1 else f"{digits(1e3 * flops)} GFLOP/s"
        of = "" if self.of_matmul is None else f", {percent(self.of_matmul)} of a product"
        return f"{text}, {rate}{of}"


class StepRow(NamedTuple):
    """One candidate over the engine steps of one trace."""

    steps: Steps
    medians_ns: list[float]
    """Median of each step, in the order of the trace."""
    comparisons: tuple[StepComparison, ...]


def timing_rows(bench: Bench) -> list[TimingRow]:
    """Return a row for each timing and clock, in the order of the run, host before device."""
    compared: dict[tuple[str, str, str, Clock], list[Comparison]] = {}
    for c in bench.comparisons:
        compared.setdefault((c.operation, c.workload, c.candidate, c.clock), []).append(c)
    rows = []
    for timing in bench.timings:
        for clock in CLOCKS:
            interval = timing.host if clock == "host" else timing.device
            if interval is not None:
                key = (timing.operation, timing.workload.name, timing.candidate, clock)
                rows.append(TimingRow(timing, clock, interval, tuple(compared.get(key, ()))))
    return rows


def step_rows(bench: Bench) -> list[StepRow]:
    """Return a row for each trace and candidate, in the order of the run."""
    return [
        StepRow(
            steps,
            step_medians(steps),
            tuple(
                c
                for c in bench.step_comparisons
                if (c.trace, c.candidate) == (steps.trace, steps.candidate)
            ),
        )
        for steps in bench.steps
    ]


def step_medians(steps: Steps) -> list[float]:
    """Return the median of each step that has samples, in nanoseconds."""
    return [median(step.ns) for step in steps.steps if step.ns]


def step_operations(bench: Bench) -> list[tuple[str, ...]]:
    """Return the operations that a step consists of, once for each different choice."""
    return list(dict.fromkeys(steps.operations for steps in bench.steps))


def left_out_of_steps(bench: Bench) -> list[tuple[str, str]]:
    """Return the operations that are not part of a step, each with its reason."""
    return list(dict.fromkeys(item for steps in bench.steps for item in steps.left_out.items()))


def ratio_of_peer(ratio: float, compared: Comparison | StepComparison) -> str:
    """Return "5.12x (4.90 to 5.31) of PEER"; `ratio` is the comparison's main figure."""
    return f"{ratio_text(ratio)} ({between(compared.low, compared.high)}) of {compared.peer}"


def step_comparison_text(compared: StepComparison) -> str:
    """Return the comparison on one trace as a sentence without its full stop."""
    return (
        f"{compared.trace}: {compared.candidate} is {ratio_text(compared.geometric_mean)} "
        f"({between(compared.low, compared.high)}) as fast as {compared.peer} by geometric "
        f"mean; at worst {ratio_text(compared.worst)}, at {compared.worst_source}"
    )
