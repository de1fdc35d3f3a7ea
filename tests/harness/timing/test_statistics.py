"""The statistics compared with scipy and with the definition of the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.timing import Noise
from attnproof.harness.timing.analysis.noise import MINIMUM_EFFECT, beyond, noise_of
from attnproof.harness.timing.statistics import (
    ALPHA,
    FEWEST_SAMPLES,
    interval,
    mann_whitney,
    ratio,
    verdict,
)

NO_NOISE = Noise(comparisons=0, declared=0, floor=0.0, minimum_effect=0.03, clock_resolution_ns=1.0)
SIDES = st.lists(st.integers(1, 12).map(float), min_size=1, max_size=25)


def lasting(median: float, n: int, seed: int) -> list[float]:
    """Skewed samples, as timings are: most near the median, some far above it."""
    random = np.random.default_rng(seed)
    return list(median * (1 + 0.01 * random.standard_normal(n) + 0.2 * (random.random(n) < 0.1)))


@pytest.fixture(scope="module")
def stats():
    """Module `scipy.stats`, whose import takes two seconds."""
    from scipy import stats

    return stats


@given(SIDES, SIDES)
def test_p_values_with_ties_are_those_of_scipy(stats, a, b):
    tied = len({*a, *b}) < len(a) + len(b)
    expected = stats.mannwhitneyu(a, b, method="asymptotic" if tied else "auto").pvalue
    got = mann_whitney(a, b)
    assert got == pytest.approx(1.0 if np.isnan(expected) else expected, abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 4), (8, 8), (8, 40), (9, 9), (60, 200)])
@pytest.mark.parametrize("shift", [0.0, 0.7, 5.0])
def test_p_values_without_ties_are_those_of_scipy(stats, n, m, shift):
    random = np.random.default_rng(n * m)
    a, b = random.standard_normal(n), random.standard_normal(m) + shift
    assert mann_whitney(a, b) == pytest.approx(stats.mannwhitneyu(a, b).pvalue, abs=1e-9)


@pytest.mark.parametrize("n", [7, 20, 101])
def test_the_interval_is_that_of_scipys_bootstrap(stats, n):
    samples = lasting(1000, n, seed=n)
    found = interval(samples)
    expected = stats.bootstrap(
        (samples,), np.median, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    spread = np.ptp(samples)
    assert found.median_ns == np.median(samples)
    assert found.low_ns == pytest.approx(expected.low, abs=0.03 * spread)
    assert found.high_ns == pytest.approx(expected.high, abs=0.03 * spread)
    assert found.samples == n


def test_one_sample_is_its_own_interval():
    found = interval([5.0])
    assert (found.low_ns, found.median_ns, found.high_ns) == (5.0, 5.0, 5.0)


def test_the_same_samples_give_the_same_interval():
    samples = lasting(100, 30, 0)
    assert interval(samples) == interval(samples)
    assert ratio(samples, samples[::-1]) == ratio(samples, samples[::-1])


def test_the_interval_of_the_median_holds_it_19_times_of_20():
    held = 0
    for seed in range(400):
        found = interval(np.random.default_rng(seed).exponential(100.0, 40))
        held += found.low_ns <= 100 * np.log(2) <= found.high_ns
    assert 0.91 <= held / 400 <= 0.98


@pytest.mark.parametrize("paired", [True, False])
def test_a_ratio_above_one_is_a_faster_candidate(paired):
    value, low, high = ratio(lasting(100, 80, 1), lasting(200, 80, 2), paired=paired)
    assert low < value < high
    assert value == pytest.approx(2, rel=0.02)


def test_slow_rounds_cancel_in_paired_samples():
    slow = np.where(np.random.default_rng(3).random(60) < 0.5, 2.0, 1.0)
    candidate, peer = 100 * slow, 130 * slow
    value, low, high = ratio(candidate, peer)
    assert (value, low, high) == pytest.approx((1.3, 1.3, 1.3))
    _, low, high = ratio(candidate, peer, paired=False)
    assert high / low > 1.5


def test_sides_of_different_length_are_compared_unpaired():
    value, low, high = ratio([100.0] * 5, [150.0] * 9, paired=False)
    assert (value, low, high) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("found", "p", "said"),
    [
        ((1.5, 1.4, 1.6), 1e-6, "faster"),
        ((0.9, 0.88, 0.92), 1e-6, "slower"),
        ((1.5, 1.4, 1.6), ALPHA, "no evidence"),  # might be chance
        ((1.02, 1.01, 1.025), 1e-6, "no evidence"),  # not worth it
        ((1.5, 1.01, 1.9), 1e-6, "no evidence"),  # might not be worth it
        ((0.98, 0.975, 0.99), 1e-6, "no evidence"),
        ((1.0, 0.9, 1.1), 0.5, "no evidence"),
    ],
)
def test_a_verdict_needs_p_value_and_interval(found, p, said):
    assert verdict(*found, p, NO_NOISE) == said


def test_fewest_samples_are_the_least_that_can_be_significant():
    def least_p(n):
        return mann_whitney(range(n), range(n, 2 * n))

    assert least_p(FEWEST_SAMPLES) < ALPHA <= least_p(FEWEST_SAMPLES - 1)


def test_no_verdict_within_the_noise_floor():
    loud = Noise(comparisons=9, declared=1, floor=0.5, minimum_effect=0.03, clock_resolution_ns=1.0)
    assert verdict(1.45, 1.4, 1.49, 1e-9, loud) == "no evidence"
    assert verdict(0.69, 0.68, 0.70, 1e-9, loud) == "no evidence"
    assert verdict(1.6, 1.51, 1.7, 1e-9, loud) == "faster"
    assert verdict(0.6, 0.59, 0.66, 1e-9, loud) == "slower"


def test_verdict_is_symmetric_in_candidate_and_peer():
    a, b = lasting(100, 60, 4), lasting(110, 60, 5)
    assert verdict(*ratio(a, b), mann_whitney(a, b), NO_NOISE) == "faster"
    assert verdict(*ratio(b, a), mann_whitney(b, a), NO_NOISE) == "slower"


def test_the_same_function_twice_is_declared_in_at_most_1_of_100():
    said = []
    for seed in range(300):
        a, b = lasting(100, 40, 2 * seed), lasting(100, 40, 2 * seed + 1)
        said.append(verdict(*ratio(a, b), mann_whitney(a, b), NO_NOISE))
    assert sum(one != "no evidence" for one in said) <= 3


def test_ten_per_cent_are_found_9_times_of_10():
    said = []
    for seed in range(100):
        a, b = lasting(110, 40, 2 * seed), lasting(100, 40, 2 * seed + 1)
        said.append(verdict(*ratio(a, b), mann_whitney(a, b), NO_NOISE))
    assert said.count("slower") >= 90


def test_floor_is_the_distance_of_an_interval_from_1():
    assert beyond(0.9, 1.1) == 0
    assert beyond(1.04, 1.1) == pytest.approx(0.04)
    assert beyond(0.7, 0.8) == pytest.approx(0.25)
    same = (lasting(100, 50, 0), lasting(100, 50, 1))
    apart = (lasting(100, 50, 0), lasting(120, 50, 1))
    assert noise_of([same]).floor < 0.02
    found = noise_of([same, apart], resolution_ns=40)
    assert found.floor == pytest.approx(0.2, abs=0.03)
    assert (found.comparisons, found.declared) == (2, 1)
    assert (found.minimum_effect, found.clock_resolution_ns) == (MINIMUM_EFFECT, 40)


def test_floor_suppresses_the_differences_it_was_made_of():
    apart = (lasting(120, 50, 0), lasting(100, 50, 1))
    assert verdict(*ratio(*apart), mann_whitney(*apart), noise_of([apart])) == "no evidence"


def test_scatter_alone_raises_no_floor():
    random = np.random.default_rng(6)
    wild = (random.uniform(50, 200, 12), random.uniform(50, 200, 12))
    assert noise_of([wild]).floor < 0.05


def test_without_comparisons_there_is_no_floor():
    assert noise_of([]).floor == 0
