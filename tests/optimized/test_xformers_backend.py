"""Tests of the XFormers backend: device reads, equality, and the path without xformers."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

from attnproof import optimized, reference
from attnproof.optimized import xformers_backend, xformers_mask

BLOCK = 16
ONE = torch.ones(1)


def builder(package=optimized, block_size=BLOCK):
    spec = SimpleNamespace(block_size=block_size)
    return package.XFormersAttentionMetadataBuilder(spec, ["layer.0"], None, torch.device("cpu"))


def on_meta(md):
    """Return the batch with its device tensors on "meta", which cannot be read."""
    names = ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping")
    return replace(md, **{name: getattr(md, name).to("meta") for name in names})


@pytest.fixture
def step(build):
    """Batch of decodes, an idle row and a prefill, with the other inputs of `forward`."""
    md = build([1, 1, 0, 3], [20, 5, 4, 7], BLOCK, num_actual_tokens=5)
    tokens, blocks = 5, int(md.block_table_tensor.max()) + 1
    random = torch.Generator().manual_seed(7)

    def numbers(*shape):
        return torch.randn(shape, generator=random).to(torch.float16)

    return SimpleNamespace(
        md=md,
        tensors=(numbers(tokens, 4, 32), numbers(tokens, 2, 32), numbers(tokens, 2, 32)),
        cache=numbers(2, blocks, BLOCK, 2, 32),
        layer=SimpleNamespace(_k_scale=ONE, _v_scale=ONE),
    )


def forward(package, step, metadata, **constants):
    impl = package.XFormersAttentionImpl(4, 32, 0.2, 2, None, constants.pop("window", None), "auto")
    cache, out = step.cache.clone(), torch.zeros(5, 4, 32, dtype=torch.float16)
    assert impl.forward(step.layer, *step.tensors, cache, metadata, out) is out
    return cache, out


def close(one, other):
    return (one.double() - other.double()).norm() <= 2e-3 * other.double().norm()


def test_building_reads_no_device_tensor(step):
    pytest.importorskip("xformers")
    made = builder().build(0, on_meta(step.md))
    assert made.attn_bias.k_seqinfo.seqlen_py == [20, 5, 4]
    assert made.attn_bias.q_seqinfo.seqstart_py == [0, 1, 2, 2]
    tensors = [made.attn_bias.k_seqinfo.seqstart, made.attn_bias.q_seqinfo.seqstart]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_views_read_no_device_tensor(step):
    made = builder().build(0, on_meta(step.md))
    for view in (made.prefill_metadata, made.decode_metadata):
        assert view.block_table.device.type == "meta"


def test_a_mask_shares_the_tensors_of_the_batch(step):
    pytest.importorskip("xformers")
    mask = builder().build(0, step.md).attn_bias
    assert mask.q_seqinfo.seqstart.data_ptr() == step.md.query_start_loc.data_ptr()
    assert mask.k_seqinfo.seqlen.data_ptr() == step.md.seq_lens.data_ptr()
    assert mask.block_tables.data_ptr() == step.md.block_table_tensor.data_ptr()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("query_lens", "seq_lens"), [([1, 1, 3], [9, 5, 7]), ([1], [9])])
def test_lengths_in_a_mask_are_dense_int32(build, dtype, strided, query_lens, seq_lens):
    pytest.importorskip("xformers")
    md = build(query_lens, seq_lens, dtype=dtype, strided=strided)
    mask = builder().build(0, md).attn_bias
    for tensor in (mask.q_seqinfo.seqstart, mask.k_seqinfo.seqlen, mask.k_seqinfo.seqstart):
        assert tensor.dtype is torch.int32
        assert tensor.stride() == (1,)


def test_build_equals_the_reference(build):
    for lens in ([], [1], [0, 0], [1, 0, 2], [5, 1], [1] * 40):
        md = build(lens, [q + 3 * (q > 0) for q in lens])
        ours, theirs = builder(block_size=2).build(0, md), builder(reference, 2).build(0, md)
        for field in fields(theirs):
            one, other = getattr(ours, field.name), getattr(theirs, field.name)
            assert field.name == "attn_bias" or one is other or one == other


def test_without_xformers_there_is_no_mask_and_the_result_is_the_same(step, monkeypatch):
    with_mask = builder().build(0, step.md)
    monkeypatch.setattr(xformers_mask, "installed", lambda: False)
    without = builder().build(0, step.md)
    assert without.attn_bias is None
    assert close(forward(optimized, step, without)[1], forward(optimized, step, with_mask)[1])


def test_without_xformers_it_is_not_imported(step, monkeypatch):
    monkeypatch.setitem(sys.modules, "xformers", None)  # an import of it would fail
    monkeypatch.setattr(xformers_mask, "installed", lambda: False)
    forward(optimized, step, builder().build(0, step.md))


@pytest.mark.parametrize("window", [None, 3])
def test_forward_equals_the_reference(step, window):
    cache, out = forward(optimized, step, builder().build(0, step.md), window=window)
    right_cache, right = forward(
        reference, step, builder(reference).build(0, step.md), window=window
    )
    assert torch.equal(cache, right_cache)
    assert close(out, right)


def test_the_mask_shows_decodes_with_one_query_each(build, monkeypatch):
    pytest.importorskip("xformers")
    one_each = builder().build(0, build([1, 1], [9, 5], BLOCK)).decode_metadata
    assert xformers_backend._one_query_each(one_each)
    evened = build([1, 0], [9, 0], BLOCK, num_actual_tokens=2, slot_mapping=torch.tensor([3, -1]))
    assert not xformers_backend._one_query_each(builder().build(0, evened).decode_metadata)
    monkeypatch.setattr(xformers_mask, "installed", lambda: False)
    unknown = builder().build(0, build([1, 1], [9, 5], BLOCK)).decode_metadata
    assert not xformers_backend._one_query_each(unknown)
