"""Tests of reshape_and_cache_flash: layouts, words, every fp8 code, and unchecked slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof import optimized, reference
from attnproof.optimized import dispatch
from attnproof.optimized.host.cache_rows import cache_rows

FP8 = torch.float8_e4m3fn
ORDERS = {
    "NHD": (0, 1, 2, 3, 4),
    "HND": (0, 1, 3, 2, 4),
    "blocks first": (1, 0, 2, 3, 4),
    "heads first": (0, 3, 1, 2, 4),
}
ROWS = ("dense", "fused", "heads apart", "elements apart")
in_the_interpreter = pytest.mark.skipif(
    not dispatch.INTERPRETED, reason="slots are checked before host loops run"
)


def bits(*shape, dtype=torch.float16, seed=0):
    """Return random bits as floats, NaN and infinities included."""
    random = torch.Generator().manual_seed(seed)
    made = torch.randint(-(2**15), 2**15, shape, generator=random, dtype=torch.int16)
    return made.view(dtype)


def paged(blocks, block_size, heads, head_size, dtype, order="NHD", gap=0):
    """Return a cache of random words in the given order, with a gap after each row."""
    shape = (2, blocks, block_size, heads, head_size)
    physical = [shape[dim] for dim in ORDERS[order]]
    random = torch.Generator().manual_seed(1)
    size = (physical[-1] + gap) * dtype.itemsize
    memory = torch.randint(0, 100, (*physical[:-1], size), generator=random, dtype=torch.uint8)
    made = memory.view(dtype)[..., :head_size]
    return memory, made.permute([ORDERS[order].index(dim) for dim in range(5)])


def rows(tokens, heads, head_size, dtype, how):
    """Return keys and values in the layouts of engines."""
    if how == "dense":
        return tuple(bits(tokens, heads, head_size, dtype=dtype, seed=s) for s in (2, 3))
    if how == "fused":
        fused = bits(tokens, 3 * heads, head_size, dtype=dtype, seed=4)
        return fused[:, heads : 2 * heads], fused[:, 2 * heads :]
    if how == "heads apart":
        both = bits(2, heads, tokens, head_size, dtype=dtype, seed=5)
        return tuple(both.transpose(1, 2).unbind())
    both = bits(tokens, heads, 2 * head_size, dtype=dtype, seed=6)
    return both[..., ::2], both[..., 1::2]


def one_nan(memory):
    """Return the bytes of fp8 codes with all NaN codes made equal."""
    return torch.where(memory & 0x7F == 0x7F, 0x7F, memory)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("how", ROWS)
@pytest.mark.parametrize("cache_dtype", [None, FP8, torch.uint8], ids=str)
def test_layouts(order, how, cache_dtype):
    for dtype, heads, head_size, block_size in (
        (torch.float16, 1, 1, 3),
        (torch.bfloat16, 2, 4, 16),
        (torch.float16, 3, 5, 3),
        (torch.bfloat16, 1, 40, 1),
    ):
        key, value = rows(5, heads, head_size, dtype, how)
        random = torch.Generator().manual_seed(block_size)
        slots = torch.randperm(6 * block_size, generator=random)[:4]
        slots[1], slots[2] = -1, 6 * block_size - 1
        rest = (slots, "fp8" if cache_dtype else "auto", torch.tensor([0.3]), torch.tensor(7.0))
        outcomes = []
        for package in (reference, optimized):
            arguments = (6, block_size, heads, head_size, cache_dtype or dtype)
            memory, cache = paged(*arguments, order, gap=head_size % 3)
            with np.errstate(all="ignore"):
                package.reshape_and_cache_flash(key, value, *cache.unbind(), *rest)
            outcomes.append(one_nan(memory) if cache_dtype else memory)
        assert torch.equal(*outcomes), (dtype, heads, head_size, block_size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3, 448.0, -2.0, 1e-38, 3e38, 0.0, float("nan")])
def test_every_number_in_fp8(dtype, scale):
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype).view(64, 8, 128)
    scales = (torch.tensor([scale]), torch.tensor([-scale]))
    outcomes = []
    for package in (reference, optimized):
        memory, cache = paged(4, 16, 8, 128, FP8)
        with np.errstate(all="ignore"):
            package.reshape_and_cache_flash(
                numbers, numbers, *cache.unbind(), torch.arange(64), "fp8", *scales
            )
        outcomes.append(one_nan(memory))
    assert torch.equal(*outcomes)


def test_more_tokens_than_a_tile_of_strided_int32_slots():
    key, value = rows(1500, 1, 8, torch.float16, "dense")
    slots = torch.randperm(3000)[:1500].to(torch.int32)
    for given in (slots, torch.stack([slots, slots], dim=1)[:, 0]):
        outcomes = []
        for package in (reference, optimized):
            memory, cache = paged(100, 30, 1, 8, torch.float16)
            arguments = (key, value, *cache.unbind(), given, "auto", None, None)
            package.reshape_and_cache_flash(*arguments)
            outcomes.append(memory)
        assert torch.equal(*outcomes)


@pytest.mark.parametrize(
    ("order", "head_size", "gap", "sizes", "block_size", "word"),
    [
        ("NHD", 8, 0, (1, 4), 1, torch.int64),
        ("NHD", 6, 0, (1, 3), 1, torch.int64),
        ("NHD", 5, 0, (1, 5), 1, torch.int32),
        ("HND", 8, 0, (2, 2), 16, torch.int64),
        ("HND", 6, 0, (2, 3), 16, torch.int32),
        ("HND", 5, 0, (2, 5), 16, torch.int16),
        ("HND", 1, 0, (1, 2), 16, torch.int16),
        ("blocks first", 8, 0, (1, 4), 16, torch.int64),
        ("NHD", 8, 2, (2, 4), 1, torch.int32),
        ("NHD", 8, 1, (2, 8), 1, torch.int16),
    ],
)
def test_rows_are_copied_in_the_widest_words(order, head_size, gap, sizes, block_size, word):
    """Heads become one run and blocks one row of slots if their layout allows it."""
    key, value = rows(3, 2, head_size, torch.float16, "dense")
    _, cache = paged(4, 16, 2, head_size, torch.float16, order, gap)
    made = cache_rows(key, value, *cache.unbind())
    assert (made.sizes, made.block_size, made.num_slots) == (sizes, block_size, 64)
    assert made.key.dtype is made.value.dtype is made.key_cache.dtype is word
    assert made.key_cache.data_ptr() == cache[0].data_ptr()


def test_words_need_aligned_addresses():
    key, value = rows(3, 2, 8, torch.float16, "dense")
    _, cache = paged(4, 16, 2, 8, torch.float16)
    shifted = bits(3 * 16 + 1)[1:].view(3, 2, 8)
    assert cache_rows(shifted, value, *cache.unbind()).key.dtype is torch.int16
    assert cache_rows(key, value, *cache.unbind()).key.dtype is torch.int64


@in_the_interpreter
def test_slots_outside_the_cache_write_nothing_on_a_device():
    from attnproof.optimized.kernels.cache_write import write_rows_on_device

    key, value = rows(4, 2, 8, torch.float16, "dense")
    memory, cache = paged(4, 16, 2, 8, torch.float16)
    before = memory.clone()
    made = cache_rows(key, value, *cache.unbind())
    write_rows_on_device(made, torch.tensor([64, -1, -2, 2**40]), None)
    assert torch.equal(memory, before)
    write_rows_on_device(made, torch.tensor([64, 63, -2, 2**40]), None)
    assert torch.equal(cache[0, 3, 15].view(torch.int16), key[1].view(torch.int16))


if dispatch.INTERPRETED:
    import triton
    import triton.language as tl

    from attnproof.optimized.kernels.fp8 import from_fp8

    @triton.jit
    def decode(codes, numbers, count: tl.constexpr):
        place = tl.arange(0, count)
        tl.store(numbers + place, from_fp8(tl.load(codes + place)))


@in_the_interpreter
def test_value_of_every_fp8_code():
    codes = torch.arange(256).to(torch.uint8)
    numbers = torch.empty(256, dtype=torch.float16)
    decode[(1,)](codes, numbers, count=256)
    expected = codes.view(FP8).half()
    finite = expected.isfinite()
    assert torch.equal(numbers[finite].view(torch.int16), expected[finite].view(torch.int16))
    assert numbers[~finite].isnan().all()
