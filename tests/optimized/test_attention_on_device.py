"""Tests of cache write and attention on a CUDA device: results, and no sync.

Expected values are the reference's, on the CPU: float64 where attention is concerned.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.cases.layers.tolerance import close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

MIXED = ([1, 1, 1, 5, 17, 0], [1, 40, 33, 5, 30, 9])
DECODES = ([1] * 5, [1, 16, 17, 100, 31])
SHAPES = {
    "multi-head": {"heads": (2, 2)},
    "grouped": {"heads": (8, 2), "dtype": torch.bfloat16},
    "one key head": {"heads": (8, 1), "head_size": 72},
    "large pages": {"block_size": 64, "head_size": 128},
    "fp8 cache": {"cache_dtype": torch.float8_e4m3fn},
}
LIMITS = {
    "plain": {},
    "window of one key": {"sliding_window": 1},
    "window across pages": {"sliding_window": 19},
    "soft cap": {"logits_soft_cap": 2.0},
    "window and soft cap": {"sliding_window": 16, "logits_soft_cap": 30.0},
}


def _bits(cache):
    return cache.view(torch.uint8).cpu()


def _written(layers, lens, shape):
    """Return the layer on the CPU and on the device, with new keys and values written."""
    here = layers.make_layer(*lens, **shape)
    there = here.to("cuda")
    here.write(reference)
    there.write(optimized)
    return here, there


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_cache_write(layers, shape):
    here = layers.make_layer(*MIXED, **shape)
    here.slots[3:6] = -1  # graph padding writes nothing
    there = here.to("cuda")
    here.write(reference)
    there.write(optimized)
    assert torch.equal(_bits(there.kv_cache), _bits(here.kv_cache))


def test_a_slot_beyond_the_cache_writes_nothing(layers):
    here = layers.make_layer(*MIXED)
    here.slots[4] = -1
    there = here.to("cuda")
    there.slots[4] = 10**12
    here.write(reference)
    there.write(optimized)
    assert torch.equal(_bits(there.kv_cache), _bits(here.kv_cache))


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_mixed_batch(layers, shape, limits):
    here, there = _written(layers, MIXED, shape)
    expected = here.attend(reference, torch.zeros(here.query.shape, dtype=torch.float64), **limits)
    got = there.attend(optimized, torch.full_like(there.query, torch.nan), **limits)
    assert close(expected, got.cpu())


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_decodes(layers, shape, limits):
    here, there = _written(layers, DECODES, shape)
    expected = here.decode(reference, torch.zeros(here.query.shape, dtype=torch.float64), **limits)
    got = there.decode(optimized, torch.full_like(there.query, torch.nan), **limits)
    assert close(expected, got.cpu())


@pytest.mark.parametrize("split", [False, True], ids=["one part", "several parts"])
def test_a_long_decode(layers, split):
    """The keys of a single request are divided into parts, those of many are not."""
    lens = [1500] if split else [300] * 12
    here, there = _written(layers, ([1] * len(lens), lens), {"heads": (2, 1)})
    expected = here.decode(reference, torch.zeros(here.query.shape, dtype=torch.float64))
    assert close(expected, there.decode(optimized, torch.empty_like(there.query)).cpu())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_forward(layers, shape):
    """Runs the whole backend: builder, cache write, prefills, decodes."""
    here = layers.make_layer(*MIXED, **shape)
    there = here.to("cuda")
    expected = _forward(layers, reference, here, torch.float64)()
    got = _forward(layers, optimized, there, there.query.dtype)()
    assert torch.equal(_bits(there.kv_cache), _bits(here.kv_cache))
    assert close(expected, got.cpu())


def _forward(layers, package, layer, dtype):
    builder, impl, engine_layer = layers.backend_parts(package, layer)
    metadata = builder.build(0, layers.metadata_of(layer))
    output = torch.zeros(layer.query.shape, dtype=dtype, device=layer.query.device)
    given = (layer.query, layer.key, layer.value, layer.kv_cache, metadata, output)
    return partial(impl.forward, engine_layer, *given)


def test_nothing_synchronises(layers, no_sync):
    _, mixed = _written(layers, MIXED, {})
    _, decodes = _written(layers, DECODES, {})
    out, rows = torch.empty_like(mixed.query), torch.empty_like(decodes.query)
    no_sync(mixed.write, optimized)
    no_sync(mixed.attend, optimized, out)
    no_sync(mixed.attend, optimized, out, sliding_window=9, logits_soft_cap=3.0)
    no_sync(decodes.decode, optimized, rows)
    no_sync(decodes.decode, optimized, rows, sliding_window=9)


def test_the_backend_does_not_synchronise(layers, no_sync):
    layer = layers.make_layer(*MIXED).to("cuda")
    builder, _, _ = layers.backend_parts(optimized, layer)
    metadata = layers.metadata_of(layer)
    built = no_sync(builder.build, 0, metadata)
    no_sync(lambda: (built.prefill_metadata, built.decode_metadata))
    no_sync(_forward(layers, optimized, layer, layer.query.dtype))
