"""Axes put values where they belong and label what can be read; numbers keep three digits."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.timing import Interval
from attnproof.harness.report.charts.figure import Axis, linear_axis, log_axis, marks, staircase
from attnproof.harness.report.shared.quantities import (
    bytes_text,
    digits,
    geometric_mean,
    interval_text,
    percent,
    quantile,
    ratio_text,
    time_text,
    time_tick,
)

VALUES = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=20)


@given(VALUES)
def test_a_logarithmic_axis_holds_its_values_in_order(values):
    axis = log_axis(values, 100.0, 700.0)
    places = [axis.at(value) for value in sorted(values)]
    assert all(100 <= place <= 700 for place in places)
    assert places == sorted(places)


@given(VALUES, st.sampled_from([log_axis, linear_axis]))
def test_labels_are_few_inside_and_apart(values, make):
    axis = make(values, 100.0, 700.0)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert all(axis.at(b) - axis.at(a) > 1 for a, b in pairwise(ticks))


def test_twice_and_half_are_equally_far_from_one():
    axis = Axis(0.25, 4, 0, 400)
    assert axis.at(2) - axis.at(1) == pytest.approx(axis.at(1) - axis.at(0.5))
    assert [axis.at(0.01), axis.at(99)] == [0, 400]


def test_an_upright_axis_grows_upwards():
    axis = log_axis([10, 1000], 200.0, 20.0)
    assert axis.at(10) > axis.at(100) > axis.at(1000)


def test_a_linear_axis_of_times_does_not_go_below_zero():
    assert linear_axis([1.0, 100.0], 0, 1).low == 0


@pytest.mark.parametrize("values", [[], [0.0], [math.inf], [-1.0]])
def test_values_without_a_logarithm_make_no_axis_fail(values):
    assert log_axis(values, 0, 100).ticks()


def test_series_differ_in_shape_and_not_only_in_colour():
    drawn = [marks([(10, 10)], series) for series in range(4)]
    shapes = [markup.split('"')[1] for markup in drawn]
    # Circle and square are caps of a line without length, which the style sheet chooses.
    assert shapes[0] == shapes[1] == "M10 10h0"
    assert len(set(shapes[1:])) == 3
    assert "k0" in drawn[0]
    assert "k1" in drawn[1]


def test_a_staircase_stays_level_until_the_next_point():
    assert 'd="M0 5H3V7H9V1"' in staircase([(0, 5), (3, 7), (9, 1)], 0)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (0.4, "0.400 ns"),
        (41, "41.0 ns"),
        (999.4, "999 ns"),
        (999.7, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_600, "1.00 ms"),
        (2.5e9, "2.50 s"),
        (7.2e12, "7,200 s"),
    ],
)
def test_times(ns, text):
    assert time_text(ns) == text


def test_an_interval_has_the_unit_of_its_median():
    interval = Interval(median_ns=1_010, low_ns=990, high_ns=1_030, samples=9)
    assert interval_text(interval) == "0.990 to 1.03"


def test_other_quantities():
    assert [digits(v) for v in (0.09996, 9.996, 99.96, 12_345)] == [
        "0.100",
        "10.0",
        "100",
        "12,345",
    ]
    assert ratio_text(0.8678) == "0.868\N{MULTIPLICATION SIGN}"
    assert [bytes_text(n) for n in (0, 96, 1536, 3 * 2**20)] == [
        "0 B",
        "96 B",
        "1.50 KiB",
        "3.00 MiB",
    ]
    assert [percent(v) for v in (0, 0.021, 0.05, 0.123, 1)] == [
        "0 %",
        "2.1 %",
        "5 %",
        "12 %",
        "100 %",
    ]
    assert [time_tick(v) for v in (500, 10_000, 1_500_000)] == ["500 ns", "10 µs", "1.5 ms"]


def test_twice_and_half_as_fast_make_one():
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1)
    assert math.isnan(geometric_mean([]))
    assert geometric_mean([0.0, 5.0]) == 0


def test_quantiles_lie_between_neighbours():
    assert [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
