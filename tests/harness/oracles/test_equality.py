"""Equality of output values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof.harness.oracles.equality import same

NAN = float("nan")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_equals_itself_and_the_zeros_differ(dtype):
    floats = torch.tensor([[1.0, NAN, 0.0]], dtype=dtype)
    assert same(floats, floats.clone())
    assert same(floats.t(), floats.clone().t())
    assert not same(floats, torch.tensor([[1.0, NAN, -0.0]], dtype=dtype))
    assert not same(floats, torch.tensor([[NAN, 1.0, 0.0]], dtype=dtype))


def test_values_of_another_dtype_differ():
    assert not same(torch.zeros(3), torch.zeros(3, dtype=torch.int32))
    assert same(torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))


def test_a_bool_that_holds_another_byte_differs():
    right = torch.tensor([True, False])
    assert same(right, right.clone())
    assert not same(right, torch.tensor([2, 0], dtype=torch.uint8).view(torch.bool))


def test_lists_of_tensors_are_compared_by_their_elements():
    pair = [torch.arange(3), None]
    assert same(pair, [torch.arange(3), None])
    assert not same(pair, [torch.arange(3).int(), None])
    assert not same(pair, (torch.arange(3), None))
    assert not same(pair, pair[:1])
    assert not same([None, None], pair)
    assert same([np.arange(3)], [np.arange(3)])
    assert same([pair], [[torch.arange(3), None]])
    assert not same([pair], [[torch.arange(3) + 1, None]])
    assert not same({"a": torch.arange(2)}, {"a": torch.arange(1, 3)})
    assert not same({"a": torch.arange(2)}, {"b": torch.arange(2)})
