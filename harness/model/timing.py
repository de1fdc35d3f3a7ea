"""What a benchmark measured. All times are nanoseconds of one call; raw samples are kept."""

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
    """Exact counts of one call, the same on every machine; None where a lane cannot see it."""

    allocations: int
    """Tensors that got memory of their own."""
    allocated_bytes: int
    dispatches: int
    """Operators that went through PyTorch's dispatcher."""
    copies: int
    """Copies between tensors, host and device ones included."""
    copied_bytes: int
    launches: int | None = None
    """Kernels launched on the device."""
    syncs: int | None = None
    """Waits of the host for the device."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is timed, in the same form for all candidates."""

    name: str
    """Such as "mixed, 64 requests" or "azure2023/AzureLLMInferenceTrace_code.csv step 1417"."""
    kind: Literal["decode", "mixed", "prefill", "trace", "model"]
    requests: int
    tokens: int


class Timing(msgspec.Struct, kw_only=True):
    """One candidate on one workload of one operation."""

    operation: str
    section: str
    candidate: str
    lane: Lane
    workload: Workload
    case_id: str
    deviations: tuple[str, ...] = ()
    """Known deviations that show on this case; any other failure would have barred the timing."""
    calls: int
    """Calls that one sample is the mean of."""
    host_ns: list[float]
    """One sample a round, in the order of the rounds."""
    device_ns: list[float] = []
    host: Interval
    device: Interval | None = None
    costs: Costs


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
    """By p-value, minimum effect and noise floor together."""


class Untimed(msgspec.Struct, frozen=True, kw_only=True):
    """What has no speed, and why: not offered, not verified, or no workload."""

    operation: str
    candidate: str
    reason: str
    workload: str = ""
    """"" for all of the operation's."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What the same function measured against itself in this run tells about the machine."""

    comparisons: int
    declared: int
    """Of these, how many were called faster or slower before the floor was applied."""
    floor: float
    """Smallest relative difference that can be told from noise, such as 0.03."""
    minimum_effect: float
    """Smallest relative difference that is worth a verdict."""
    clock_resolution_ns: float


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """All the metadata of one engine step, by one candidate."""

    source: str
    case_id: str
    """Of the inputs of all its operations together."""
    requests: int
    tokens: int
    ns: list[float]
    """One sample a round."""


class Steps(msgspec.Struct, kw_only=True):
    """One candidate through the sampled steps of one trace."""

    trace: str
    candidate: str
    operations: tuple[str, ...]
    """What a step consists of, in order: operations that every candidate here offers."""
    left_out: dict[str, str] = {}
    """Operations that are not part of it, and why."""
    steps: list[Step]


class StepComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two candidates on the same steps of one trace."""

    trace: str
    candidate: str
    peer: str
    geometric_mean: float
    """Of the steps' ratios, peer's time over the candidate's."""
    low: float
    high: float
    worst: float
    """Smallest ratio of any step."""
    worst_source: str


class Regression(msgspec.Struct, frozen=True, kw_only=True):
    """One timing beside the baseline's."""

    operation: str
    workload: str
    candidate: str
    clock: Clock
    ratio: float
    """Time now divided by the baseline's, each in units of the control's: above 1 is slower."""
    low: float
    high: float
    p_value: float
    verdict: Speed
    costs: str = ""
    """Which exact counts grew, such as "allocations 3 to 4"; "" if none did."""


class BaselineResult(msgspec.Struct, kw_only=True):
    """What a baseline says about this run."""

    name: str = ""
    state: BaselineState = "not asked for"
    reason: str = ""
    """In words, why no time was compared."""
    created: str = ""
    regressions: list[Regression] = []
    """Every timing that both have, whatever its verdict; of another machine's baseline those
    alone whose exact counts grew."""
    lost: list[str] = []
    """Timings that only the baseline has, as `operation / candidate / workload`."""
    control: float = 1.0
    """How many times as long the control takes as it did then, 1 where no time was compared."""
    not_confirmed: int = 0
    """Timings that looked slower, and did not when they were timed again."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A baseline of this machine as the history shows it."""

    name: str
    created: str
    commit: str
    control_ns: float
    """Median of its control's samples, 0 if it has none."""
    medians_ns: dict[str, float]
    """Median host times by `operation / candidate / workload`."""


class Bench(msgspec.Struct, kw_only=True):
    """Everything that a benchmark found out."""

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
    """Samples of a fixed piece of work, taken all through the run: what the machine is doing."""
    seconds: float = 0.0
