"""Tests of the cache write: the worked example, fp8 codes and errors."""

from __future__ import annotations

import pytest
import torch

FP8 = torch.float8_e4m3fn
ONE = torch.ones(1)
HALF = torch.tensor(0.5)


def caches(dtype=torch.float16):
    """Return caches of two blocks of four slots, with one head of two elements."""
    return torch.zeros((2, 2, 4, 1, 2)).to(dtype).unbind()


def tokens(*values, dtype=torch.float16):
    """Return one head of two equal elements for each value."""
    return torch.tensor(values, dtype=dtype).view(-1, 1, 1).repeat(1, 1, 2)


def held(cache):
    """Return the first element of every slot."""
    return cache.float()[:, :, 0, 0].tolist()


@pytest.mark.spec("Example, B = 4, slots [6, -1, 1]: token 0 goes to offset 2 of block 1")
@pytest.mark.spec("Slot -1 writes nothing (not the last slot!)")
def test_worked_example(package):
    keys, values = caches()
    given = (tokens(1, 2, 3), tokens(4, 5, 6))
    slots = torch.tensor([6, -1, 1])
    assert package.reshape_and_cache_flash(*given, keys, values, slots, "auto", ONE, ONE) is None
    assert held(keys) == [[0, 3, 0, 0], [0, 0, 1, 0]]
    assert held(values) == [[0, 6, 0, 0], [0, 0, 4, 0]]


@pytest.mark.spec("1.0625 becomes 2 (2.125 lies between 2 and 2.25), 1.1875 becomes 2.5")
@pytest.mark.parametrize("spelling", ["fp8", "fp8_e4m3"])
@pytest.mark.parametrize("dtype", [FP8, torch.uint8])
def test_worked_example_in_fp8(package, spelling, dtype):
    keys, values = caches(dtype)
    given = tokens(1.0625, 1.1875, 300, -300)
    rest = (torch.arange(4), spelling, HALF, ONE)
    package.reshape_and_cache_flash(given, given, keys, values, *rest)
    assert held(keys.view(FP8))[0] == [2, 2.5, 448, -448]
    assert held(values.view(FP8))[0] == [1.0, 1.25, 288, -288]


@pytest.mark.spec("infinities too, NaN kept as either of its two codes")
def test_infinities_and_nan(package):
    keys, values = caches(FP8)
    given = tokens(float("inf"), float("-inf"), float("nan"), dtype=torch.bfloat16)
    package.reshape_and_cache_flash(
        given, given, keys, values, torch.arange(3), "fp8", ONE.clone(), HALF
    )
    for half in (keys, values):
        assert held(half)[0][:2] == [448, -448]
        assert half.float()[0, 2].isnan().all()


@pytest.mark.spec("The number of tokens is `len(slot_mapping)`; key and value may be longer")
def test_rows_after_the_last_slot_are_not_read(package):
    keys, values = caches()
    package.reshape_and_cache_flash(
        tokens(1, 9, 9), tokens(2, 9), keys, values, torch.tensor([7]), "auto", ONE, ONE
    )
    assert held(keys) == [[0, 0, 0, 0], [0, 0, 0, 1]]
    assert held(values) == [[0, 0, 0, 0], [0, 0, 0, 2]]


@pytest.mark.spec('"auto": the cache has the keys\' dtype and the scales are not read')
def test_scales_of_an_auto_cache_are_not_read(package):
    keys, values = caches()
    package.reshape_and_cache_flash(
        tokens(1), tokens(2), keys, values, torch.tensor([0]), "auto", None, "seven"
    )
    assert held(keys)[0][0] == 1


@pytest.mark.spec("below -1 or beyond its end, is a `MetadataError` where slots lie on the CPU")
@pytest.mark.parametrize("slot", [8, -2, 2**40])
def test_slots_outside_the_cache_are_errors(package, slot):
    keys, values = caches()
    slots = torch.tensor([0, slot, 1])
    with pytest.raises(package.MetadataError, match=r"slot_mapping is .*, expected -1 or a slot"):
        package.reshape_and_cache_flash(
            tokens(1, 2, 3), tokens(1, 2, 3), keys, values, slots, "auto", ONE, ONE
        )
    assert held(keys) == held(values) == [[0] * 4] * 2


@pytest.mark.parametrize(
    ("slots", "error"), [([], None), ([-1], None), ([0], "expected -1 or a slot up to -1")]
)
def test_a_cache_without_blocks(package, slots, error):
    empty = torch.zeros((0, 4, 1, 2), dtype=torch.float16)
    arguments = (tokens(1), tokens(2), empty, empty, torch.tensor(slots, dtype=torch.int64))
    if error is None:
        package.reshape_and_cache_flash(*arguments, "auto", ONE, ONE)
        return
    with pytest.raises(package.MetadataError, match=error):
        package.reshape_and_cache_flash(*arguments, "auto", ONE, ONE)


def test_slots_of_keys_without_elements_are_checked(package):
    keys, values = torch.zeros((2, 2, 4, 1, 0), dtype=torch.float16).unbind()
    empty = torch.zeros((1, 1, 0), dtype=torch.float16)
    package.reshape_and_cache_flash(empty, empty, keys, values, torch.tensor([7]), "auto", ONE, ONE)
    with pytest.raises(package.MetadataError, match="slot_mapping is 8"):
        package.reshape_and_cache_flash(
            empty, empty, keys, values, torch.tensor([8]), "auto", ONE, ONE
        )
