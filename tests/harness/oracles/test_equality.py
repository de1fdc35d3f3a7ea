"""Equality of output values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof.harness.model.call import Facts
from attnproof.harness.model.place import Place
from attnproof.harness.model.text import float_texts
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.attempt import digest
from attnproof.harness.oracles.equality import agrees, difference, first_difference, same

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


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn],
)
def test_nan_equals_nan_of_other_bits(dtype):
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    nan, other = torch.tensor([1.0, NAN]).to(dtype), torch.tensor([1.0, NAN]).to(dtype)
    other.view(word)[1] ^= 1 << (8 * dtype.itemsize - 1)
    assert not torch.equal(nan.view(word), other.view(word))
    assert same(nan, other)
    assert digest({"out": nan}) == digest({"out": other})
    assert not same(nan, nan[[1, 0]])


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [1, x], lambda x: (x,), lambda x: {"a": x}]
)
def test_nan_equals_nan_in_python_objects(wrap):
    assert same(wrap(NAN), wrap(float("nan")))
    assert not same(wrap(NAN), wrap(1.0))
    assert not same(wrap(1.0), wrap(NAN))


def test_two_nan_are_never_the_difference_that_is_shown():
    right, wrong = torch.tensor([NAN, NAN, 3.0]), torch.tensor([NAN, 2.0, 4.0])
    assert first_difference(right, wrong) == (1,)
    operation = ALL["CommonAttentionMetadata"]
    _, text = difference(operation, Place("scales"), right, wrong)
    assert text == "scales[1] is 2.0, expected nan"
    assert first_difference(right, right.clone()) is None


def test_a_reference_that_is_not_finite_judges_nobody():
    operation = ALL["paged_attention"]
    right = torch.tensor([[[1.0, NAN]]], dtype=torch.float64)
    with pytest.raises(ValueError, match="the reference's out is not finite"):
        agrees(operation, Place("out"), right, right.half())


def test_a_difference_of_words_is_shown_as_the_numbers_that_they_are():
    facts = Facts(numbers=torch.float16)
    right, wrong = (torch.tensor(pair, dtype=torch.float16) for pair in ([1.0, NAN], [1.5, NAN]))
    operation, place = ALL["reshape_and_cache_flash"], Place("key_cache")
    words_of = [tensor.view(torch.int16) for tensor in (right, wrong)]
    _, text = difference(operation, place, *words_of, facts)
    assert text == "key_cache[0] is 1.5, expected 1.0"
    other_nan = words_of[0] ^ torch.tensor([0, 1], dtype=torch.int16)
    _, text = difference(operation, place, words_of[0], other_nan, facts)
    assert text == "key_cache[1] is 32257, expected 32256"


@pytest.mark.parametrize(
    ("expected", "got", "texts"),
    [
        (0.10000000149011612, 0.10009765625, ("0.1", "0.100098")),
        (1.0, 1.00000001, ("1.0", "1.00000001")),
        (-3.0, 2e30, ("-3.0", "2e+30")),
        (NAN, 0.0, ("nan", "0.0")),
        (NAN, NAN, ("nan", "nan")),
    ],
)
def test_floats_have_as_many_digits_as_tell_them_apart(expected, got, texts):
    assert float_texts(expected, got) == texts
