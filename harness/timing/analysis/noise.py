"""The noise floor of a run: apparent differences between a function and itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.timing import Noise
from attnproof.harness.timing.process.clocks import host_clock
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
from attnproof.harness.timing.statistics import mann_whitney, ratio, verdict

MINIMUM_EFFECT = 0.03
"""Smallest relative difference worth a verdict: a function of a microsecond differs from
itself by half of this, depending on its memory addresses."""
Pair = tuple[Sequence[float], Sequence[float]]


def measure_noise(
    contestants: Sequence[Contestant], budget: Budget, lane: Lane, repeats: int = 1
) -> Noise:
    """Time each contestant against itself on new inputs, `repeats` times; call in `steady()`."""
    pairs: list[Pair] = []
    for contestant in contestants:
        for _ in range(repeats):
            first, other = measure((contestant, contestant), budget, lane)
            pairs.append((first.host_ns, other.host_ns))
            if first.device_ns:
                pairs.append((first.device_ns, other.device_ns))
    return noise_of(pairs, host_clock().resolution_ns)


def noise_of(pairs: Sequence[Pair], resolution_ns: float = 0.0) -> Noise:
    """Return the noise of pairs of samples of the same function; floor 0 without pairs."""
    without_floor = Noise(
        comparisons=len(pairs),
        declared=0,
        floor=0.0,
        minimum_effect=MINIMUM_EFFECT,
        clock_resolution_ns=resolution_ns,
    )
    compared = [(ratio(*pair), mann_whitney(*pair)) for pair in pairs]
    speeds = [verdict(*ratios, p, without_floor) for ratios, p in compared]
    return msgspec.structs.replace(
        without_floor,
        declared=sum(speed != "no evidence" for speed in speeds),
        floor=max((beyond(low, high) for (_, low, high), _ in compared), default=0.0),
    )


def beyond(low: float, high: float) -> float:
    """Return the relative distance of a ratio's interval from 1; 0 if the interval holds 1.

    Scatter widens the interval and needs no floor. The floor is for differences that stay
    constant during a measurement although the code is the same.
    """
    return max(0.0, low - 1, 1 / high - 1)
