"""Paged caches in guarded memory: layouts, gaps and distinct values."""

from __future__ import annotations

import pytest
import torch

from attnproof.harness.cases.memory.arena import Arena
from attnproof.harness.cases.memory.paged_cache import DTYPES, LAYOUTS, PagedCache


def laid_out(**changes):
    cache = PagedCache("kv", 3, 2, 4, 8, **{"dtype": "float16", "layout": 0} | changes)
    return cache, Arena([cache.piece(0)], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=LAYOUTS)
def test_layouts_hold_the_same_elements(layout, dtype):
    plain, plain_arena = laid_out(dtype=dtype)
    cache, arena = laid_out(dtype=dtype, layout=layout, gap=3)
    words = cache.words(arena.tensors["kv"])
    assert torch.equal(words, plain.words(plain_arena.tensors["kv"]))
    made = cache.tensor(arena.tensors["kv"])
    assert made.shape == (2, 3, 2, 4, 8)
    assert made.dtype is getattr(torch, dtype)
    assert made.data_ptr() == words.data_ptr()


def test_layouts_have_the_order_that_their_name_says():
    strides = [laid_out(layout=layout)[1].tensors["kv"].stride() for layout in range(4)]
    assert strides[0] == (192, 64, 32, 8, 1)
    views = []
    for layout in range(4):
        cache, arena = laid_out(layout=layout)
        views.append(cache.tensor(arena.tensors["kv"]).stride())
    assert views[1] == (192, 64, 8, 16, 1)
    assert views[2] == (64, 128, 32, 8, 1)
    assert views[3] == (192, 16, 8, 48, 1)


def test_elements_differ_within_a_cache_and_between_caches():
    cache, arena = laid_out()
    words = cache.words(arena.tensors["kv"])
    assert words.unique().numel() == words.numel()
    other = cache._replace(name="other").piece(0).values
    assert (other != cache.piece(0).values).all()
    assert (cache.piece(1).values != cache.piece(0).values).all()


@pytest.mark.parametrize("dtype", ["uint8", "float8_e4m3fn"])
def test_blocks_of_one_byte_elements_differ(dtype):
    cache = PagedCache("kv", 40, 2, 4, 8, dtype, 0)
    blocks = cache.piece(0).values.reshape(80, -1)
    assert len({block.tobytes() for block in blocks}) == 80


def test_memory_between_the_rows_is_guarded():
    cache, arena = laid_out(layout=1, gap=3)
    made = cache.tensor(arena.tensors["kv"])
    made.view(torch.int16).as_strided((9,), (1,)).fill_(1)
    [found] = arena.unexpected_writes(frozenset({"kv"}))
    assert (found.word, found.inside) == (8, False)


def test_a_cache_without_blocks_is_empty():
    cache, arena = laid_out()
    empty = cache._replace(num_blocks=0)
    arena = Arena([empty.piece(0)], 0)
    assert empty.tensor(arena.tensors["kv"]).shape == (2, 0, 2, 4, 8)
