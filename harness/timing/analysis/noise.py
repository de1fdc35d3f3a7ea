"""The noise floor of a run: what functions measured against themselves seem to differ by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.timing import Noise
from attnproof.harness.timing.process.clocks import host_clock
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.statistics import mann_whitney, ratio, verdict

MINIMUM_EFFECT = 0.03
"""What is worth a verdict: a function of a microsecond differs by half of it from itself,
for where its memory happens to lie."""
Pair = tuple[Sequence[float], Sequence[float]]


def measure_noise(
    contestants: Sequence[Contestant], budget: Budget, lane: Lane, repeats: int = 1
) -> Noise:
    """Each contestant against itself on inputs of its own, `repeats` times, in `quiet()`."""
    pairs: list[Pair] = []
    for contestant in contestants:
        for _ in range(repeats):
            one, other = measure((contestant, contestant), budget, lane)
            pairs.append((one.host_ns, other.host_ns))
            if one.device_ns:
                pairs.append((one.device_ns, other.device_ns))
    return noise_of(pairs, host_clock().resolution_ns)


def noise_of(pairs: Sequence[Pair], resolution_ns: float = 0.0) -> Noise:
    """The noise that pairs of samples of the same function tell of; without any, no floor."""
    without_floor = Noise(
        comparisons=len(pairs),
        declared=0,
        floor=0.0,
        minimum_effect=MINIMUM_EFFECT,
        clock_resolution_ns=resolution_ns,
    )
    found = [(ratio(*pair), mann_whitney(*pair)) for pair in pairs]
    said = [verdict(*ratios, p, without_floor) for ratios, p in found]
    return msgspec.structs.replace(
        without_floor,
        declared=sum(speed != "no evidence" for speed in said),
        floor=max((beyond(low, high) for (_, low, high), _ in found), default=0.0),
    )


def beyond(low: float, high: float) -> float:
    """How far an interval of a ratio misses 1, relative; 0 if 1 lies in it.

    What merely scatters widens the interval and needs no floor: that is for differences
    which stay the same for as long as is measured, and are none of the code's.
    """
    return max(0.0, low - 1, 1 / high - 1)
