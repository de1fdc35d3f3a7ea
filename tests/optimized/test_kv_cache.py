"""Tests of swap_blocks and copy_blocks: layouts, dtypes, words, and offsets beyond 32 bits."""

from __future__ import annotations

import random

import pytest
import torch

from attnproof import optimized, reference
from attnproof.optimized import dispatch, kv_cache
from attnproof.optimized.host.block_runs import block_runs

DTYPES = [torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int64]
ORDERS = {
    "NHD": (0, 1, 2, 3, 4),
    "HND": (0, 1, 3, 2, 4),
    "blocks first": (1, 0, 2, 3, 4),
    "heads first": (0, 3, 1, 2, 4),
}


def cache(shape, dtype, order="NHD", gap=0, seed=0):
    """Return a cache of random bits in the given order, with `gap` elements between runs."""
    physical = [shape[dim] for dim in ORDERS[order]]
    generator = torch.Generator().manual_seed(seed)
    row = (physical[-1] + gap) * dtype.itemsize
    bits = torch.randint(0, 256, (*physical[:-1], row), generator=generator, dtype=torch.uint8)
    made = bits.view(dtype)[..., : physical[-1]]
    return made.permute([ORDERS[order].index(dim) for dim in range(5)])


def bits(made):
    """Return the elements as integers: NaN does not equal itself."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return made.view(words[made.element_size()])


def random_pairs(rng, num_sources, num_targets):
    count = rng.randrange(min(num_sources, num_targets) + 1)
    sources = rng.choices(range(num_sources), k=count)
    targets = rng.sample(range(num_targets), count)
    return torch.tensor([sources, targets], dtype=torch.int64).T


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("from_order", ORDERS)
@pytest.mark.parametrize("to_order", ORDERS)
def test_swap_between_layouts(dtype, from_order, to_order):
    rng = random.Random(f"{dtype} {from_order} {to_order}")
    for _ in range(4):
        block = [rng.choice([1, 2, 16]), rng.choice([1, 3]), rng.choice([1, 5, 8, 32])]
        blocks, gaps = [rng.randrange(1, 7) for _ in "ab"], [rng.choice([0, 0, 3, 8]) for _ in "ab"]
        pairs = random_pairs(rng, *blocks)
        outcomes = []
        for package in (reference, optimized):
            source = cache((2, blocks[0], *block), dtype, from_order, gaps[0], seed=1)
            target = cache((2, blocks[1], *block), dtype, to_order, gaps[1], seed=2)
            package.swap_blocks(source, target, pairs)
            outcomes.append(bits(target))
        assert torch.equal(*outcomes), (block, blocks, gaps, pairs)


@pytest.mark.parametrize("order", ORDERS)
def test_copy_in_layers_of_different_shapes(order):
    pairs = torch.tensor([[3, 1], [3, 0]])
    outcomes = []
    for package in (reference, optimized):
        layers = [
            cache((2, 4, 2, 3, 5), torch.float16, order, seed=1),
            cache((2, 9, 16, 1, 64), torch.uint8, seed=2),
        ]
        package.copy_blocks(layers, pairs)
        outcomes.append(list(map(bits, layers)))
    assert all(map(torch.equal, *outcomes))


def test_strided_pairs():
    pairs = torch.tensor([[3, 9, 1, 9], [0, 9, 2, 9]])[:, ::2]
    outcomes = []
    for package in (reference, optimized):
        layer = cache((2, 4, 2, 3, 8), torch.float16)
        package.copy_blocks([layer], pairs)
        outcomes.append(bits(layer))
    assert torch.equal(*outcomes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_copy_across_devices_gathers_and_scatters(dtype):
    """Calls the code for two devices with both caches on the CPU."""
    source, target = (cache((2, 6, 16, 2, 8), dtype, "HND", seed=seed) for seed in (1, 2))
    expected, pairs = target.clone(), torch.tensor([[5, 0], [5, 3], [1, 4]])
    reference.swap_blocks(source, expected, pairs)
    kv_cache._copy_across(source, target, pairs)
    assert torch.equal(bits(target), bits(expected))


@pytest.mark.parametrize(
    ("order", "dtype", "gap", "shape", "word"),
    [
        ("NHD", torch.float16, 0, (1, 1, 16 * 2 * 8 // 4), torch.int64),
        ("HND", torch.float16, 0, (1, 1, 16 * 2 * 8 // 4), torch.int64),
        ("NHD", torch.uint8, 0, (1, 1, 16 * 2 * 8 // 8), torch.int64),
        ("NHD", torch.float16, 2, (1, 32, 4), torch.int32),
        ("NHD", torch.float16, 1, (1, 32, 8), torch.int16),
    ],
)
def test_blocks_are_copied_in_the_widest_words(order, dtype, gap, shape, word):
    made = cache((2, 4, 16, 2, 8), dtype, order, gap)
    source, target = block_runs(made, made)
    assert source.dtype is target.dtype is word
    assert source.shape[2:] == target.shape[2:] == shape
    assert source.data_ptr() == made.data_ptr()


def test_words_need_an_aligned_address():
    buffer = torch.zeros(2 * 4 * 16 + 1, dtype=torch.uint8)
    source, _ = block_runs(
        buffer[1:].view(2, 4, 4, 2, 2), torch.zeros((2, 4, 4, 2, 2), dtype=torch.uint8)
    )
    assert source.dtype is torch.uint8


@pytest.mark.parametrize("odd", [0, 1], ids=["words", "bytes"])
def test_offsets_beyond_32_bits(odd):
    """Two blocks are 2**31 bytes apart (K15); the memory between them is never touched."""
    far = 2**31 + odd
    memory = torch.empty(2 * far, dtype=torch.uint8)
    made = memory.as_strided((2, 2, 3, 1, 8), (64, far, 8, 8, 1))
    made[:, 0] = 7
    made[:, 1] = 0
    optimized.copy_blocks([made], torch.tensor([[0, 1]]))
    assert (made[:, 1] == 7).all()
    made[:, 0] = 3
    optimized.swap_blocks(made, made, torch.tensor([[1, 0]]))
    assert (made == 7).all()


@pytest.mark.skipif(not dispatch.INTERPRETED, reason="ids are checked before host loops run")
def test_a_kernel_ignores_ids_outside_the_cache():
    from attnproof.optimized.kernels.kv_cache import copy_runs_on_device

    made = cache((2, 4, 2, 3, 8), torch.float16)
    before = bits(made).clone()
    pairs = torch.tensor([[4, 0], [-1, 1], [0, 4], [1, -1], [2**40, 2]])
    copy_runs_on_device(block_runs(made, made), pairs)
    assert torch.equal(bits(made), before)


def test_errors_are_those_of_the_reference(agree):
    one = cache((2, 4, 2, 3, 8), torch.uint8)
    for pairs in ([[4, 0]], [[0, -1]], [[0, 1], [2, 1]], [[0, 1, 2]]):
        error = agree("copy_blocks", [one], torch.tensor(pairs))
        assert isinstance(error, reference.MetadataError)
    wide = torch.zeros((2, 4, 2, 3, 8), dtype=torch.complex128)
    error = agree("copy_blocks", [wide], torch.tensor([[0, 1]]))
    assert isinstance(error, reference.MetadataError)
    assert isinstance(agree("swap_blocks", one, None, torch.tensor([[0, 1]])), TypeError)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("from_device", ["cpu", "cuda"])
@pytest.mark.parametrize("to_device", ["cpu", "cuda"])
def test_between_devices(from_device, to_device):
    """Only a copy to the CPU synchronises."""
    pairs = torch.tensor([[5, 0], [5, 3], [1, 4]])
    outcomes = []
    for package in (reference, optimized):
        source = cache((2, 6, 16, 2, 8), torch.float16, "HND", seed=1).to(from_device)
        target = cache((2, 9, 16, 2, 8), torch.float16, seed=2).to(to_device)
        package.swap_blocks(source, target, pairs)
        if package is optimized and to_device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
            try:
                package.swap_blocks(source, target, pairs)
                package.copy_blocks([target], torch.tensor([[1, 2]]))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        elif to_device == "cuda":
            package.copy_blocks([target], torch.tensor([[1, 2]]))
        outcomes.append(bits(target))
    assert torch.equal(*outcomes)
