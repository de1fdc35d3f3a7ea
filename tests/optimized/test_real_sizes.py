"""Tests with sizes of real engine steps on a real GPU, and with several GPUs."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from attnproof import optimized, reference

IS_REAL = torch.cuda.is_available() and "ATTNPROOF_FAKE_CUDA" not in os.environ
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_REAL, reason="no CUDA device")]

GIB = 1 << 30
LLAMA = {"heads": 32, "kv_heads": 8, "head_size": 128, "block_size": 16}
"""Shape of Llama-3.1-8B, and the block size of engines."""


def paged(lengths, dtype=torch.bfloat16, seed=0):
    """Return keys and values by request, (Hkv, s, D), a cache with them, and its block table."""
    generator = torch.Generator("cuda").manual_seed(seed)
    size, kv_heads, head_size = LLAMA["block_size"], LLAMA["kv_heads"], LLAMA["head_size"]
    blocks = [-(-length // size) for length in lengths]
    cache = torch.randn(
        2, sum(blocks), size, kv_heads, head_size, dtype=dtype, device="cuda", generator=generator
    )
    ids = torch.randperm(sum(blocks), device="cuda", generator=generator).int()
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32, device="cuda")
    held = []
    for row, (own, length) in enumerate(zip(ids.split(blocks), lengths, strict=True)):
        table[row, : len(own)] = own
        flat = cache[:, own.long()].flatten(1, 2)[:, :length]
        held.append(flat.transpose(1, 2))
    return held, cache, table


def expected_of(query, held, **more):
    """Return causal attention of the last queries (q, Hq, D) of one request, in float64."""
    keys, values = (part.double().repeat_interleave(4, 0) for part in held)
    queries = query.double().transpose(0, 1)
    rows, length = queries.shape[1], keys.shape[1]
    behind = torch.arange(length - rows, length, device="cuda")[:, None] - torch.arange(
        length, device="cuda"
    )
    seen = behind >= 0
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen).transpose(0, 1)


def near(expected, got):
    """Require a result within SPEC.md section 8's tolerance for bfloat16."""
    error = (got.double() - expected).norm() / expected.norm()
    return bool(torch.isfinite(got).all()) and float(error) <= 1.6e-2


def test_slots_of_a_hundred_thousand_tokens():
    lens = [1] * 300 + [97_000, 0, 2_700]
    offsets = torch.tensor([0, *torch.tensor(lens).cumsum(0)], dtype=torch.int32)
    computed = torch.arange(len(lens), dtype=torch.int32) * 7 % 4001
    width = -(-(97_000 + 4001) // 16)
    table = torch.randperm(len(lens) * width).reshape(len(lens), width).int()
    expected = reference.build_slot_mapping(offsets, computed, table, 16)
    there = [tensor.cuda() for tensor in (offsets, computed, table)]
    got = optimized.build_slot_mapping(*there, 16, num_padded_tokens=len(expected))
    assert torch.equal(got.cpu(), expected)


def test_a_cache_of_more_than_two_to_the_31_elements():
    """Offsets of slots need 64 bits (K15)."""
    if torch.cuda.mem_get_info()[0] < 20 * GIB:
        pytest.skip("needs 20 GiB of free GPU memory")
    blocks = 2**31 // (16 * 8 * 128) + 64
    cache = torch.zeros(2, blocks, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    key, value = torch.randn(2, 40, 8, 128, device="cuda").bfloat16()
    slots = torch.arange(blocks * 16 - 40, blocks * 16, device="cuda")
    one = torch.ones(1, device="cuda")
    optimized.reshape_and_cache_flash(key, value, *cache.unbind(), slots, "auto", one, one)
    assert torch.equal(cache[0].view(-1, 8, 128)[-40:], key)
    assert torch.equal(cache[1].view(-1, 8, 128)[-40:], value)
    assert not cache[:, 0].any()
    table = torch.arange(blocks - 3, blocks, dtype=torch.int32, device="cuda")[None]
    query = torch.randn(1, 32, 128, device="cuda").bfloat16()
    out = torch.empty_like(query)
    length = torch.tensor([48], dtype=torch.int32, device="cuda")
    optimized.decode_attention(
        query, *cache.unbind(), length, table, 128**-0.5, max_seq_len=48, out=out
    )
    held = cache[:, -3:].flatten(1, 2).transpose(1, 2)
    assert near(expected_of(query, held), out)


def test_decodes_with_a_long_context():
    lengths = [8192 - 61 * row for row in range(64)]
    held, cache, table = paged(lengths)
    query = torch.randn(64, 32, 128, device="cuda").bfloat16()
    out = torch.empty_like(query)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    optimized.decode_attention(
        query, *cache.unbind(), seq_lens, table, 128**-0.5, max_seq_len=8192, out=out
    )
    for row in range(64):
        assert near(expected_of(query[row : row + 1], held[row]), out[row : row + 1]), row


@pytest.mark.parametrize("tokens", [2048, 4096, 16384])
def test_prefill(tokens):
    held, cache, table = paged([tokens])
    query = torch.randn(tokens, 32, 128, device="cuda").bfloat16()
    out = torch.empty_like(query)
    starts, length = (torch.tensor(n, dtype=torch.int32).cuda() for n in ([0, tokens], [tokens]))
    bounds = {"max_query_len": tokens, "max_seq_len": tokens}
    optimized.paged_attention(
        query, *cache.unbind(), starts, length, table, 128**-0.5, **bounds, out=out
    )
    last = 256
    assert near(expected_of(query[-last:], held[0]), out[-last:])
    first = [part[:, :last] for part in held[0]]
    assert near(expected_of(query[:last], first), out[:last])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_the_second_of_two_devices(layers):
    """Triton launches on the current device, which is not that of the tensors."""
    here = layers.make_layer([1, 5, 17], [40, 33, 30])
    there = here.to("cuda:1")
    assert torch.cuda.current_device() == 0
    here.write(reference)
    there.write(optimized)
    assert torch.equal(there.kv_cache.view(torch.uint8).cpu(), here.kv_cache.view(torch.uint8))
    expected = here.attend(reference, torch.zeros(here.query.shape, dtype=torch.float64))
    got = there.attend(optimized, torch.empty_like(there.query))
    assert float((got.cpu().double() - expected).norm() / expected.norm()) < 2e-3
