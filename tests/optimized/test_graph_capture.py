"""Tests of the device path in a CUDA graph: captured once, replayed with later batches.

A graph reads the addresses it was captured with, so each step writes its lengths, slots,
keys and queries into the same buffers; grids and splits follow from bounds that stay.
"""

from __future__ import annotations

import os

import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.cases.layers.tolerance import close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STEPS = [([1, 1, 1, 1], [5, 16, 33, 64]), ([1, 1, 1, 1], [64, 1, 17, 50])]
MIXED = [([1, 3, 8, 0], [5, 16, 33, 7]), ([2, 2, 4, 4], [64, 2, 17, 50])]


def captured(function):
    """Capture a call in a graph and return the function that replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()  # compiles, and makes allocations that are made once
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    if "ATTNPROOF_FAKE_CUDA" in os.environ:
        return function
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def refill(buffers, layer):
    """Copy the layer's tensors into the buffers of the graph."""
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor):
            getattr(buffers, name).copy_(value)


def steps_of(layers, given, **shape):
    """Return layers on the CPU with equal bounds, and device buffers with the first layer."""
    shape["width"] = -(-max(length for _, lengths in given for length in lengths) // 16)
    made = [layers.make_layer(*lens, seed=seed, **shape) for seed, lens in enumerate(given)]
    for layer in made:
        layer.max_query_len = max(step.max_query_len for step in made)
        layer.max_seq_len = max(step.max_seq_len for step in made)
    return made, made[0].to("cuda")


def whole_step(buffers, **limits):
    """Capture a step of `buffers`; return its replay, the computed tokens and the tables."""
    (rows, width), tokens = buffers.block_table.shape, buffers.query.shape[0]
    block_size = buffers.kv_cache.shape[2]
    tables = optimized.BlockTables([block_size], rows, tokens, [width], buffers.query.device)
    requests = torch.arange(rows - 1, -1, -1, dtype=torch.int32, device="cuda")
    computed = torch.zeros(rows, dtype=torch.int32, device="cuda")
    positions = torch.zeros(tokens, dtype=torch.int64, device="cuda")
    buffers.out = torch.empty_like(buffers.query)

    def step():
        starts = buffers.query_start_loc
        optimized.prepare_pos_seq_lens(requests, starts, computed, positions, buffers.seq_lens)
        (buffers.block_table,) = tables.gather_block_tables(requests, rows)
        buffers.slots = tables.compute_slot_mappings(requests, starts, positions, tokens)[0]
        buffers.write(optimized)
        buffers.attend(optimized, buffers.out, **limits)

    return captured(step), computed, tables


def prepare(layer, computed, tables):
    """Give the requests of a layer to the state that a captured step reads."""
    rows = len(layer.seq_lens)
    computed.copy_((layer.seq_lens - layer.query_start_loc.diff()).flip(0))
    for row, blocks in enumerate(layer.block_table.tolist()):
        tables.append_block_ids(rows - 1 - row, (blocks,), overwrite=True)
    tables.apply_staged_writes()


def test_slot_mapping(layers):
    made, buffers = steps_of(layers, MIXED)
    computed = torch.zeros(4, dtype=torch.int32, device="cuda")
    out = torch.empty(20, dtype=torch.int64, device="cuda")
    given = (buffers.query_start_loc, computed, buffers.block_table, 16)
    replay = captured(lambda: optimized.build_slot_mapping(*given, out=out))
    for layer in made:
        before = layer.seq_lens - layer.query_start_loc.diff()
        refill(buffers, layer)
        computed.copy_(before)
        out.fill_(7)
        replay()
        there = (layer.query_start_loc, before, layer.block_table, 16)
        expected = reference.build_slot_mapping(*there, num_padded_tokens=20)
        assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("cache_dtype", [None, torch.float8_e4m3fn], ids=["auto", "fp8"])
def test_cache_write(layers, cache_dtype):
    made, buffers = steps_of(layers, MIXED, cache_dtype=cache_dtype)
    replay = captured(lambda: buffers.write(optimized))
    for layer in made:
        refill(buffers, layer)
        replay()
        layer.write(reference)
        assert torch.equal(_bits(buffers.kv_cache), _bits(layer.kv_cache))


@pytest.mark.parametrize("limits", [{}, {"sliding_window": 20, "logits_soft_cap": 5.0}])
def test_a_whole_step(layers, limits):
    """Positions, lengths, block tables and slots, then the cache write and attention."""
    made, buffers = steps_of(layers, MIXED)
    replay, computed, tables = whole_step(buffers, **limits)
    for layer in made:
        refill(buffers, layer)
        prepare(layer, computed, tables)
        for result in (buffers.seq_lens, buffers.block_table, buffers.slots, buffers.out):
            result.fill_(7)  # what the graph has to write
        replay()
        layer.write(reference)
        expected = torch.zeros(buffers.out.shape, dtype=torch.float64)
        assert close(layer.attend(reference, expected, **limits), buffers.out.cpu())
        assert torch.equal(buffers.slots.cpu(), layer.slots)


@pytest.mark.parametrize("heads", [(8, 2), (1, 1)], ids=["grouped", "several parts"])
def test_decode_attention(layers, heads):
    longer = [(q, [12 * s for s in lens]) for q, lens in STEPS]
    made, buffers = steps_of(layers, longer, heads=heads)
    out = torch.empty_like(buffers.query)

    def step():
        buffers.write(optimized)
        buffers.decode(optimized, out)

    replay = captured(step)
    for layer in made:
        refill(buffers, layer)
        out.fill_(torch.nan)
        replay()
        layer.write(reference)
        expected = torch.zeros(out.shape, dtype=torch.float64)
        assert close(layer.decode(reference, expected), out.cpu())


def test_the_buffers_of_a_persistent_batch(layers):
    """A graph that reads the slots of a batch sees those of the last build."""
    batch = optimized.PersistentBatch(4, 16, 4, 4, "cuda")
    batch.add_request("a", [7, 3, 5])
    batch.add_request("b", [1, 2], 2)
    metadata = batch.build({"a": 3, "b": 1}, 4, 8)
    seen = torch.empty(16, dtype=torch.int64, device="cuda")
    lengths = torch.empty(4, dtype=metadata.seq_lens.dtype, device="cuda")

    def step():
        seen.copy_(batch.slot_mapping)
        lengths.copy_(metadata.seq_lens)

    replay = captured(step)
    for scheduled in ({"a": 5, "b": 3}, {"a": 0, "b": 1}):
        built = batch.build(scheduled, 4, 8)
        replay()
        assert seen.tolist() == [*built.slot_mapping.tolist(), *[-1] * 8]
        assert lengths.tolist() == built.seq_lens_cpu.tolist()


def _bits(cache):
    return cache.view(torch.uint8).cpu()
