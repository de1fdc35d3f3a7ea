"""Diagnoses of wrong cache writes, and caches whose elements need 64-bit offsets."""

from __future__ import annotations

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.layers.cache_write import CacheWrite
from attnproof.harness.cases.memory.far_memory import FAR_ELEMENTS
from attnproof.harness.operations import ALL
from attnproof.harness.operations.attention.cache_write import reshape_and_cache_flash
from attnproof.harness.operations.attention.cache_write_cases import PLAIN, case_of
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial

BATCH = make_batch([3, 2], [1, 4], 4, padded_tokens=1)
BOUNDARIES = dict(reshape_and_cache_flash.inputs.boundaries())
right = reference.reshape_and_cache_flash


def diagnoses(wrong, **params):
    """Return the diagnosis of equality for each half of the cache."""
    case = case_of(BATCH, num_kv_heads=2, **params)
    failures = judge(Trial(reshape_and_cache_flash, case, wrong, right, "cpu")).failures
    return {f.field: f.diagnosis for f in failures if f.oracle == "equality"}


def exchanged(key, value, *rest):
    right(value, key, *rest)


def keys_only(key, value, key_cache, value_cache, *rest):
    right(key, value, key_cache, value_cache.clone(), *rest)


def first_token_for_all(key, value, *rest):
    right(key[:1].expand_as(key), value[:1].expand_as(value), *rest)


def next_slot(key, value, key_cache, value_cache, slots, *rest):
    right(key, value, key_cache, value_cache, torch.where(slots >= 0, slots ^ 1, slots), *rest)


def heads_reversed(key, value, *rest):
    right(key.flip(1), value.flip(1), *rest)


def last_slot_for_padding(key, value, key_cache, value_cache, slots, *rest):
    last = key_cache.shape[0] * key_cache.shape[1] - 1
    right(key, value, key_cache, value_cache, torch.where(slots < 0, last, slots), *rest)


def with_scales(change):
    def wrong(*arguments):
        *others, kv_cache_dtype, k_scale, v_scale = arguments
        right(*others, kv_cache_dtype, *change(k_scale, v_scale))

    return wrong


def towards_zero(key, value, *rest):
    right((key.float() * 0.97).to(key.dtype), (value.float() * 0.97).to(key.dtype), *rest)


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (exchanged, "keys and values exchanged"),
        (first_token_for_all, "another token's content"),
        (next_slot, "written to another slot"),
        (heads_reversed, "elements of a token in another order"),
        (last_slot_for_padding, "slot -1 taken for the last slot of the cache"),
    ],
)
@pytest.mark.parametrize("cache", ["auto", "fp8"])
def test_a_mistake_is_diagnosed(wrong, diagnosis, cache):
    named = diagnoses(wrong, cache=cache)
    assert named["key_cache"] == named["value_cache"] == diagnosis


def test_a_half_that_is_not_written_is_diagnosed():
    assert diagnoses(keys_only)["value_cache"] == "values not written"
    assert "key_cache" not in diagnoses(keys_only)


@pytest.mark.parametrize(
    ("change", "diagnosis"),
    [
        (lambda k, v: (k / k, v / v), "not divided by the scale"),
        (lambda k, v: (1 / k, 1 / v), "multiplied by the scale"),
        (lambda k, v: (v, k), "the other half's scale"),
    ],
)
def test_a_wrong_scale_is_diagnosed(change, diagnosis):
    named = diagnoses(with_scales(change), cache="uint8", k_scale=0.5, v_scale=4.0)
    assert named["key_cache"] == named["value_cache"] == diagnosis


def test_codes_that_are_not_the_nearest_are_diagnosed():
    assert diagnoses(towards_zero, cache="fp8")["key_cache"] == "not rounded to the nearest"


def test_invariants_detect_wrong_codes_that_the_reference_shares():
    """The invariants read the cache back; equality compares two sides with the same mistake."""
    case = case_of(BATCH, cache="fp8", content=2)
    trial = Trial(reshape_and_cache_flash, case, towards_zero, towards_zero, "cpu")
    named = {(failure.oracle, failure.field) for failure in judge(trial).failures}
    assert named >= {("invariants", "key_cache"), ("invariants", "value_cache")}
    assert "equality" not in {oracle for oracle, _ in named}


@pytest.mark.parametrize("name", [name for name in BOUNDARIES if "K15" in name])
def test_far_caches_have_offsets_that_need_more_than_32_bits(name):
    case = BOUNDARIES[name]
    made = CacheWrite(case.batch, case.params, 0, "cpu")
    offsets = made.element_offsets()[made.slots[made.slots >= 0]]
    assert offsets.min() < 2**20
    assert offsets.max() >= FAR_ELEMENTS
    for cache in (made.args["key_cache"], made.args["value_cache"]):
        assert cache.untyped_storage().nbytes() > 2 * FAR_ELEMENTS


def test_a_far_cache_has_the_same_content_at_each_start():
    case = BOUNDARIES["element offsets beyond 2**31, auto (K15)"]
    for _ in range(2):
        made = CacheWrite(case.batch, case.params, 0, "cpu")
        assert made.words().numpy().tolist() == made.before.tolist()
        right(*made.args.values())
        assert made.words().numpy().tolist() != made.before.tolist()


def test_a_plain_case_is_small():
    made = CacheWrite(make_batch([1], [0], 1), PLAIN, 0, "cpu")
    assert made.before.size <= 64


def is_far(slots, cache):
    return slots // cache.shape[1] * cache.stride(0) >= FAR_ELEMENTS


def exchanged_far_away(key, value, key_cache, value_cache, slots, *rest):
    right(key, value, key_cache, value_cache, slots, *rest)
    far = slots.where(is_far(slots, key_cache), -1)
    right(value, key, key_cache, value_cache, far, *rest)


def not_written_far_away(key, value, key_cache, value_cache, slots, *rest):
    near = slots.where(~is_far(slots, key_cache), -1)
    right(key, value, key_cache, value_cache, near, *rest)


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [
        (exchanged_far_away, "keys and values exchanged"),
        (not_written_far_away, "32-bit overflow"),
    ],
)
def test_a_mistake_beyond_32_bits_is_an_overflow_only_if_nothing_is_written(wrong, diagnosis):
    case = BOUNDARIES["element offsets beyond 2**31, auto (K15)"]
    failures = judge(Trial(reshape_and_cache_flash, case, wrong, right, "cpu")).failures
    assert {f.diagnosis for f in failures if f.oracle == "equality"} == {diagnosis}


def zeros_copied(caches, pairs):
    (cache,) = caches
    cache[:, pairs[1, 1]] = 0


def far_and_near_copied(caches, pairs):
    (cache,) = caches
    cache[:, pairs[:, 1]] = cache[:, pairs[:, 1].flip(0)].clone()


@pytest.mark.parametrize(
    ("wrong", "diagnosis"),
    [(zeros_copied, "32-bit overflow"), (far_and_near_copied, "another block's content")],
)
def test_a_copy_of_another_block_is_no_overflow(wrong, diagnosis):
    operation = ALL["copy_blocks"]
    case = dict(operation.inputs.boundaries())["blocks 2**31 elements apart, float16 (K15)"]
    failures = judge(Trial(operation, case, wrong, reference.copy_blocks, "cpu")).failures
    assert {f.diagnosis for f in failures if f.oracle == "equality"} == {diagnosis}
