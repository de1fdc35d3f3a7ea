"""The tolerance of float results accepts rounding and rejects larger errors."""

from __future__ import annotations

import math

import pytest
import torch

from attnproof.harness.cases.layers.tolerance import (
    TOLERANCES,
    beyond,
    close,
    farthest,
    without_infinities,
)

RIGHT = torch.linspace(-2, 2, 60, dtype=torch.float64).reshape(3, 4, 5)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rounding_is_within_the_tolerance(dtype):
    assert close(RIGHT, RIGHT.to(dtype))
    assert close(RIGHT[:0], RIGHT[:0].to(dtype))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_relative_error_above_the_tolerance_is_rejected(dtype):
    assert close(RIGHT, (RIGHT * (1 + 0.5 * TOLERANCES[dtype])).to(dtype))
    assert not close(RIGHT, (RIGHT * (1 + 2.5 * TOLERANCES[dtype])).to(dtype))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_number_near_0_may_be_rounded(dtype):
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    right = torch.full((4, 2, 1), 13.44 * step, dtype=torch.float64)
    assert close(right, right.to(dtype))
    assert not close(right, (right + 3 * step).to(dtype))


def test_only_errors_above_the_tolerance_are_named():
    got = RIGHT * (1 + 0.2 * TOLERANCES[torch.float16])
    got[1, 2, 3] += 1.0
    got[2, 0, 1] = math.nan
    assert beyond(RIGHT, got.to(torch.float16)) == [[1, 2, 3], [2, 0, 1]]
    assert beyond(RIGHT, got, 2e-3) == [[1, 2, 3], [2, 0, 1]]


def test_many_small_errors_that_are_too_large_together_are_named():
    factor = 1 + 2.5 * TOLERANCES[torch.float16]
    rows = torch.ones(2, 100, dtype=torch.float64)
    rows[:, 0] = 30
    got = (rows * factor).to(torch.float16)
    assert not close(rows, got)
    assert beyond(rows, got) == [[0, 0], [1, 0]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_rejected(wrong):
    got = RIGHT.to(torch.float16)
    got[1, 2, 3] = wrong
    assert not close(RIGHT, got)
    assert farthest(RIGHT, got) == (1, 2, 3)


def test_the_error_of_one_element_is_relative_to_its_row():
    right = torch.ones(64, 64, dtype=torch.float64)
    right[0] *= 1e-3
    got = right.to(torch.float16)
    got[0, 5] += 1e-3  # small for the tensor, as large as the other elements of its row
    assert not close(right, got)
    assert farthest(right, got) == (0, 5)


def test_sums_that_cancel_in_a_narrow_row_keep_the_rounding_of_their_terms():
    right = torch.full((512, 1), 0.25, dtype=torch.float64)
    right[7] = 2.878e-4
    got = right.to(torch.float16)
    got[7] = 2.489e-4  # one rounding of float16 at 0.1
    assert close(right, got)
    got[7] = 2e-3
    assert not close(right, got)


@pytest.mark.parametrize(
    "got", [RIGHT.float(), RIGHT[:2].half(), RIGHT.half().to("meta"), None, RIGHT.tolist()]
)
def test_another_dtype_shape_device_or_type_is_not_close(got):
    assert not close(RIGHT, got)


def test_equal_infinities_and_expected_nan_are_left_out():
    expected = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    left = without_infinities(expected, torch.tensor([math.inf, math.inf, 5.0, 2.0]))
    assert left[0].tolist() == [0, -math.inf, 0, 1]
    assert left[1].tolist() == [0, math.inf, 0, 2]
