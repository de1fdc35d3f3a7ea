"""Results of a benchmark: times are nanoseconds of one call, and raw samples are kept."""

from __future__ import annotations

from typing import Literal

import msgspec

from attnproof.harness.model.candidate import Lane

Clock = Literal["host", "device"]
Speed = Literal["faster", "slower", "no evidence"]
BaselineState = Literal["compared", "missing", "damaged", "another machine", "not asked for"]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A median with its bootstrap 95 % interval."""

    median_ns: float
    low_ns: float
    high_ns: float
    samples: int


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts of one call, the same on every machine; None if a lane cannot count them."""

    allocations: int
    """Tensors with memory of their own."""
    allocated_bytes: int
    dispatches: int
    """Operators that PyTorch dispatched."""
    copies: int
    """Copies between tensors, also between host and device."""
    copied_bytes: int
    launches: int | None = None
    """Kernels launched on the device."""
    syncs: int | None = None
    """Waits of the host for the device."""


class MachineRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of the machine in this run, which bound every call: a roofline."""

    bytes_per_second: float
    """Bytes read and written by a copy by torch that no cache holds."""
    flops_per_second: float
    """Floating-point operations of a large product of matrices by torch."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and floating-point operations of a call, and the time of a copy of as many bytes."""

    bytes: int
    """Bytes of arguments and results that it reads or writes, of a cache those of its tokens."""
    flops: int = 0
    """Floating-point operations, 0 if they are not counted."""
    copy_host_ns: float = 0.0
    """Median time of a copy by torch that reads and writes as many bytes."""
    copy_device_ns: float | None = None
    machine: MachineRates | None = None
    """None if no floating-point operations are counted."""


WorkloadKind = Literal["decode", "mixed", "prefill", "trace", "recorded", "model", "served"]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One input to time, the same for all candidates."""

    name: str
    """Such as "mixed, 64 requests" or "azure2023/AzureLLMInferenceTrace_code.csv step 1417"."""
    kind: WorkloadKind
    requests: int
    tokens: int


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate on one workload of one operation."""

    operation: str
    section: str
    candidate: str
    lane: Lane
    workload: Workload
    case_id: str
    deviations: tuple[str, ...] = ()
    """Known deviations that show on this case; with any other failure it is not timed."""
    calls: int
    """Calls of one sample, which is their mean."""
    host_ns: list[float]
    """One sample a round, in the order of the rounds."""
    device_ns: list[float] = []
    host: Interval
    device: Interval | None = None
    costs: Costs
    work: Work | None = None
    """None where it is not declared, and below the bytes that matter."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two candidates timed in turn on one workload."""

    operation: str
    workload: str
    candidate: str
    peer: str
    clock: Clock
    ratio: float
    """Peer's time divided by the candidate's: above 1 the candidate is faster."""
    low: float
    high: float
    """Bootstrap 95 % interval of the ratio."""
    p_value: float
    """Mann-Whitney, two-sided."""
    verdict: Speed
    """Decided by p-value, minimum effect and noise floor together."""


class Untimed(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of a candidate without a time, and the reason."""

    operation: str
    candidate: str
    reason: str
    workload: str = ""
    """Name of the workload, "" for all of the operation's."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between a function and itself, measured in this run."""

    comparisons: int
    declared: int
    """Comparisons with a verdict "faster" or "slower" before the floor was applied."""
    floor: float
    """Smallest relative difference that exceeds the noise, such as 0.03."""
    minimum_effect: float
    """Smallest relative difference that is worth a verdict."""
    clock_resolution_ns: float


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """All metadata of one engine step, computed by one candidate."""

    source: str
    case_id: str
    """Hash of the case ids of all its operations."""
    requests: int
    tokens: int
    ns: list[float]
    """One sample a round."""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate on the sampled engine steps of one trace."""

    trace: str
    candidate: str
    operations: tuple[str, ...]
    """Operations of an engine step, in order: those that every timed candidate offers."""
    left_out: dict[str, str] = {}
    """Operations that are not part of it, each with its reason."""
    steps: list[Step]


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two candidates on the same engine steps of one trace."""

    trace: str
    candidate: str
    peer: str
    geometric_mean: float
    """Geometric mean of the engine steps' ratios, peer's time over the candidate's."""
    low: float
    high: float
    worst: float
    """Smallest ratio of any engine step."""
    worst_source: str


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one timing with the baseline's."""

    operation: str
    workload: str
    candidate: str
    clock: Clock
    ratio: float
    """Time now divided by the baseline's, each in units of its control: above 1 is slower."""
    low: float
    high: float
    p_value: float
    verdict: Speed
    costs: str = ""
    """Exact counts that grew, such as "allocations 3 to 4"; "" if none did."""


class BaselineResult(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of this run with a baseline."""

    name: str = ""
    state: BaselineState = "not asked for"
    reason: str = ""
    """Reason why no times were compared, in words."""
    created: str = ""
    regressions: list[Regression] = []
    """Timings that both have; with a baseline of another machine only those with grown counts."""
    lost: list[str] = []
    """Timings that only the baseline has, as `operation / candidate / workload`."""
    control: float = 1.0
    """Time of the control divided by its time in the baseline, 1 if no time was compared."""
    not_confirmed: int = 0
    """Number of timings that looked slower first, but not when they were timed again."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline of this machine, as one point of the history."""

    name: str
    created: str
    commit: str
    control_ns: float
    """Median of its control's samples, 0 if it has none."""
    medians_ns: dict[str, float]
    """Median host times by `operation / candidate / workload`."""


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a benchmark."""

    timings: list[Timing]
    comparisons: list[Comparison]
    untimed: list[Untimed]
    noise: Noise
    steps: list[Steps] = []
    step_comparisons: list[StepComparison] = []
    baseline: BaselineResult = msgspec.field(default_factory=BaselineResult)
    history: list[Past] = []
    """Baselines of this machine in the folder of baselines, the oldest first."""
    control_ns: list[float] = []
    """Times of the control, sampled after each measurement: they show the machine's load."""
    seconds: float = 0.0
