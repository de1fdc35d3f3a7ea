"""Tests of make_kv_sharing_fast_prefill_common_attn_metadata and of its backend."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass

import pytest
import torch

from attnproof import optimized, reference
from attnproof.harness.cases.engines import backend as engine
from attnproof.optimized import dispatch
from attnproof.reference import CommonAttentionMetadata, KVSharingFastPrefillMetadata, MetadataError

NAME = "make_kv_sharing_fast_prefill_common_attn_metadata"


def sampled(build, query_lens, indices, *, padding=0, stale=(77777, -5), dtype=None, **options):
    """Return a batch with logits indices and 3 computed tokens a request."""
    md = build(list(query_lens), [q + 3 for q in query_lens], **options)
    md.num_actual_tokens += padding
    md.slot_mapping = torch.cat([md.slot_mapping, torch.full((padding,), -1)])
    kind = dtype or md.query_start_loc.dtype
    md.logits_indices_padded = torch.tensor([*indices, *stale], dtype=kind)
    md.num_logits_indices = len(indices)
    return md


def test_worked_example(build, agree):
    reduced = agree(NAME, sampled(build, [15, 5, 8], [14, 18, 19, 27]))
    assert reduced.query_start_loc.tolist() == [0, 1, 3, 4]
    assert type(reduced.max_query_len) is type(reduced.num_actual_tokens) is int


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [1], [0, 1]])
def test_decodes_return_the_batch_itself(build, query_lens):
    md = sampled(build, query_lens, [0])
    assert getattr(optimized, NAME)(md) is md


@pytest.mark.parametrize("query_lens", [[], [4], [0, 3, 0], [0, 0]])
def test_dummy_runs_return_the_batch_itself(build, query_lens):
    md = build(query_lens, query_lens)
    assert getattr(optimized, NAME)(md) is md


@pytest.mark.parametrize("num_reqs", [14, 15, 16, 17, 300])
@pytest.mark.parametrize("num_indices", [0, 1, 255, 256, 257, 1000])
def test_sizes_around_the_tiles(build, agree, num_reqs, num_indices):
    lens = [(7 * row) % 5 for row in range(num_reqs)]
    indices = [(i * 13) % sum(lens) for i in range(num_indices)]
    agree(NAME, sampled(build, lens, indices))


@pytest.mark.parametrize("wide", ["query_start_loc", "query_start_loc_cpu"])
def test_mixed_dtypes_are_kept(build, agree, wide):
    md = sampled(build, [3, 4], [2, 6])
    setattr(md, wide, getattr(md, wide).to(torch.int64))
    assert getattr(agree(NAME, md), wide).dtype is torch.int64


def test_twins_have_their_own_storage(build):
    reduced = getattr(optimized, NAME)(sampled(build, [3, 4], [2, 6]))
    reduced.query_start_loc.fill_(99)
    assert reduced.query_start_loc_cpu.tolist() == [0, 1, 2]


def test_a_subclass_stays_one(build, agree):
    @dataclass
    class Named(CommonAttentionMetadata):
        name: str = ""

    md = sampled(build, [3, 4], [2, 6])
    named = Named(**vars(md), name="step 7")
    reduced = agree(NAME, named)
    assert type(reduced) is Named
    assert reduced.name == "step 7"


@pytest.mark.parametrize(
    "change",
    [
        {"num_logits_indices": None},
        {"num_logits_indices": 9},
        {"num_logits_indices": True},
        {"logits_indices_padded": torch.tensor([2.0, 6.0])},
        {"logits_indices_padded": torch.tensor([[2, 6]])},
        {"logits_indices_padded": torch.tensor([2, 7])},
        {"logits_indices_padded": torch.tensor([-1, 6])},
        {"query_start_loc_cpu": torch.tensor([0, 4, 3], dtype=torch.int32)},
        {"max_query_len": 3},
        {"num_actual_tokens": 6},
    ],
)
def test_malformed_batches(build, agree, change):
    md = sampled(build, [3, 4], [2, 6])
    for field, value in change.items():
        setattr(md, field, value)
    assert isinstance(agree(NAME, md), (MetadataError, TypeError))


def test_a_count_without_indices_returns_the_batch_itself(build, agree):
    md = sampled(build, [3, 4], [2, 6])
    md.logits_indices_padded = None
    assert agree(NAME, md) is md


@pytest.mark.parametrize("package", ["attnproof.reference", "attnproof.optimized"])
def test_a_backend_uses_its_own_package(package, monkeypatch, build):
    calls = []
    module = importlib.import_module(f"{package}.fast_prefill")
    make = getattr(module, NAME)
    monkeypatch.setattr(module, NAME, lambda md: calls.append(md) or make(md))
    backend = module.create_fast_prefill_custom_backend("Fast", engine.make_backend(0, []))
    engine.make_builder(backend).build(0, sampled(build, [3, 4], [2, 6]))
    assert len(calls) == 1


@pytest.mark.parametrize("form", range(5))
def test_built_metadata_has_everything(build, form):
    kinds = list(range(6))
    underlying = engine.make_backend(form, kinds)
    backend = optimized.create_fast_prefill_custom_backend("Fast_", underlying)
    builder = engine.make_builder(backend)
    md = sampled(build, [15, 5, 8], [14, 18, 19, 27])
    built = builder.build(0, md)
    assert isinstance(built, underlying.get_metadata_cls())
    assert isinstance(built, KVSharingFastPrefillMetadata)
    assert built.query_start_loc.tolist() == [0, 1, 3, 4]
    assert built.logits_indices_padded is md.logits_indices_padded
    for name, value in engine.expected_values(kinds).items():
        assert getattr(built, name) == value
    assert copy.copy(built).detail_0 == built.detail_0
    names = [backend.__name__, type(builder).__name__, type(built).__name__]
    assert names == ["Fast_EngineBackend", "Fast_EngineBuilder", "Fast_EngineMetadata"]
    later = [type(builder.build(0, md)) for _ in range(2)]
    assert later[0] is later[1]
    assert issubclass(later[0], underlying.later_metadata_cls)


def test_made_classes_have_the_module_of_the_underlying_ones():
    underlying = engine.make_backend(0, [])
    backend = reference.create_fast_prefill_custom_backend("Fast_", underlying)
    assert backend.full_cls_name() == (underlying.__module__, "Fast_EngineBackend")


@pytest.mark.skipif(not dispatch.INTERPRETED, reason="host loops stop at the first malformed index")
@pytest.mark.parametrize("before", [0, 7])
def test_the_kernel_writes_how_many_indices_are_malformed(before):
    """The count is written even if it is 0: uninitialised memory may be 0 too."""
    from attnproof.optimized.kernels.fast_prefill import count_sampled_on_device

    for indices, malformed in (([0, 4, 6], 1), ([0, 4], 0), ([-1, 2**32, 2], 2)):
        counted = torch.full((4,), before)
        offsets = torch.tensor([0, 3, 5])
        count_sampled_on_device(offsets, torch.tensor(indices), 6, counted)
        assert int(counted[-1]) == malformed
