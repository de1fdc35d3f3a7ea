"""Statistics of samples: medians, bootstrap intervals, tests, and the verdict on a ratio.

No sample is dropped, and no distribution is assumed. The bootstrap has a fixed seed: the
same samples give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from attnproof.harness.model.timing import Interval, Noise, Speed

ALPHA = 0.001
"""Level of significance: small, because a run makes thousands of comparisons."""
FEWEST_SAMPLES = 7
"""Least samples of each side whose test can be significant: p is 2 / 3432 at least."""
_DRAWS = 2000
_PAIRED_DRAWS = 1000
_SEED = 20250217
_LOW, _HIGH = 0.025, 0.975
_EXACT_UP_TO = 8
"""Most samples of the smaller side for exact p-values without ties, as in scipy."""
Floats = npt.NDArray[np.float64]


def interval(samples_ns: Sequence[float]) -> Interval:
    """Return the median of n >= 1 samples, with its bootstrap 95 % interval."""
    ordered = np.sort(np.asarray(samples_ns, dtype=np.float64))
    low, high = np.quantile(_medians(ordered, np.random.default_rng(_SEED)), (_LOW, _HIGH))
    return Interval(
        median_ns=float(np.median(ordered)),
        low_ns=float(low),
        high_ns=float(high),
        samples=len(ordered),
    )


def _medians(ordered: Floats, random: np.random.Generator) -> Floats:
    """Return the medians of `_DRAWS` bootstrap resamples of ascending samples.

    A resample takes n random places, and its median is at the middle one of them. The k-th
    smallest of n uniform numbers has a beta distribution, so only the middle place is drawn
    and not all n: the same distribution for a thousandth of the work.
    """
    n = len(ordered)
    below = (n + 1) // 2
    first = random.beta(below, n - below + 1, _DRAWS)
    middle = ordered[_places(first, n)]
    if n % 2:
        return middle
    # The next larger number: the smallest of the n - below numbers above the first.
    second = 1 - (1 - first) * random.random(_DRAWS) ** (1 / (n - below))
    return (middle + ordered[_places(second, n)]) / 2


def _places(uniform: Floats, n: int) -> npt.NDArray[np.int64]:
    return np.minimum((uniform * n).astype(np.int64), n - 1)


def ratio(
    candidate_ns: Sequence[float], peer_ns: Sequence[float], *, paired: bool = True
) -> tuple[float, float, float]:
    """Return the peer's median over the candidate's, with its bootstrap 95 % interval.

    Paired samples are of the same rounds, equally many on both sides. The bootstrap then
    draws rounds, so that a slow round counts on both sides; otherwise it draws each side
    alone.
    """
    candidate = np.asarray(candidate_ns, dtype=np.float64)
    peer = np.asarray(peer_ns, dtype=np.float64)
    random = np.random.default_rng(_SEED)
    if paired:
        rounds = random.integers(0, len(peer), (_PAIRED_DRAWS, len(peer)), dtype=np.int32)
        ratios = _middle(peer[rounds]) / _middle(candidate[rounds])
    else:
        ratios = _medians(np.sort(peer), random) / _medians(np.sort(candidate), random)
    low, high = np.quantile(ratios, (_LOW, _HIGH))
    return float(np.median(peer) / np.median(candidate)), float(low), float(high)


def _middle(drawn: Floats) -> Floats:
    return np.asarray(np.median(drawn, axis=1, overwrite_input=True))


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of n >= 1 ratios, with its bootstrap 95 % interval."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    random = np.random.default_rng(_SEED)
    means = logs[random.integers(0, len(logs), (_DRAWS, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, (_LOW, _HIGH)))
    return float(np.exp(logs.mean())), float(low), float(high)


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of the Mann-Whitney test that one side tends to be larger.

    Exact for few samples without ties; else by the normal distribution, corrected for
    ties and for continuity. Equals the p-value of scipy.stats.mannwhitneyu.
    """
    values = np.concatenate([np.asarray(a, np.float64), np.asarray(b, np.float64)])
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, m = len(a), len(b)
    statistic = float(ranks[:n].sum() - n * (n + 1) / 2)
    larger = max(statistic, n * m - statistic)
    if min(n, m) <= _EXACT_UP_TO and counts.max() == 1:
        return min(1.0, 2 * _exact_tail(round(larger), n, m))
    total = n + m
    tied = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1))
    deviation = math.sqrt(n * m / 12 * (total + 1 - tied))
    if deviation == 0:  # all samples are equal
        return 1.0
    return min(1.0, math.erfc((larger - n * m / 2 - 0.5) / deviation / math.sqrt(2)))


def _exact_tail(statistic: int, n: int, m: int) -> float:
    """Return the share of orders of n and m different values with U >= `statistic`.

    Orders with U = u are counted by the coefficients of a Gaussian binomial: the product
    of (1 - x^(m+i)) / (1 - x^i) for i = 1..n, for the smaller side as n.
    """
    n, m = min(n, m), max(n, m)
    orders = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            orders[u] -= orders[u - m - i]
        for u in range(i, n * m + 1):
            orders[u] += orders[u - i]
    return sum(orders[statistic:]) / math.comb(n + m, n)


def verdict(ratio: float, low: float, high: float, p: float, noise: Noise) -> Speed:
    """Return the verdict on a ratio (above 1: faster).

    "faster" and "slower" need a p-value below `ALPHA` and an interval beyond the noise.
    """
    least = 1 + max(noise.floor, noise.minimum_effect)
    if p >= ALPHA:
        return "no evidence"
    if ratio > 1 and low > least:
        return "faster"
    if ratio < 1 and high < 1 / least:
        return "slower"
    return "no evidence"
