"""Tests of the operations on a CUDA device: equality with the reference, and no sync."""

from __future__ import annotations

import random

import pytest
import torch

from attnproof import optimized, reference
from attnproof.reference import UBatchSlice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_random_batches(build, agree, dtype):
    rng = random.Random(f"{dtype}")
    for _ in range(30):
        lens = [rng.choice([0, 1, 1, 2, 5, 9, 600]) for _ in range(rng.randrange(9))]
        seq_lens = [q + rng.choice([0, 1, 3, 30]) for q in lens]
        md = build(lens, seq_lens, 4, dtype=dtype, device="cuda")
        computed = md.num_computed_tokens_cpu.to("cuda")
        agree("make_local_attention_virtual_batches", 16, md, 4)
        agree("build_slot_mapping", md.query_start_loc, computed, md.block_table_tensor, 4)
        if sum(lens) > 1 and lens[0] > 1:
            cut = lens[0] - 1
            slices = [UBatchSlice(slice(0, 1), slice(0, cut))]
            agree("split_attn_metadata", slices, md)
            agree("slice_query_start_locs", md.query_start_loc, slice(0, 1))


def test_nothing_synchronises(build, no_sync):
    md = build([3, 5, 1], [9, 20, 7], device="cuda")
    computed = md.num_computed_tokens_cpu.to("cuda")
    slices = [UBatchSlice(slice(0, 2), slice(0, 5)), UBatchSlice(slice(1, 3), slice(5, 9))]
    no_sync(optimized.make_local_attention_virtual_batches, 4, md, 2)
    no_sync(optimized.split_attn_metadata, slices, md)
    no_sync(optimized._make_metadata_with_slice, slices[0], md)
    no_sync(optimized.split_decodes_and_prefills, md)
    no_sync(
        optimized.build_slot_mapping,
        *(md.query_start_loc, computed, md.block_table_tensor, 2),
        num_padded_tokens=16,
    )


def test_more_tokens_than_one_tile(agree):
    lens = torch.tensor([0, 700, 1, 0, 0, 1500, 0], device="cuda")
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64, device="cuda"), lens.cumsum(0)])
    table = torch.randperm(7 * 90, device="cuda").reshape(7, 90)
    agree("build_slot_mapping", offsets, lens * 0 + 5, table, 16, num_padded_tokens=2300)


def test_sampled_tokens_and_programs(build, agree):
    rng = random.Random("sampled")
    for _ in range(30):
        lens = [rng.choice([0, 1, 2, 5, 9, 600]) for _ in range(1 + rng.randrange(40))]
        md = build(lens, [q + 3 for q in lens], 4, device="cuda", strided=rng.random() < 0.5)
        indices = [rng.randrange(sum(lens)) for _ in range(rng.randrange(400) if sum(lens) else 0)]
        md.logits_indices_padded = torch.tensor([*indices, 9**8], device="cuda")
        md.num_logits_indices = len(indices)
        agree("make_kv_sharing_fast_prefill_common_attn_metadata", md)
        agree("compute_causal_conv1d_metadata", md.query_start_loc)
        md.logits_indices_padded[:1] = -1
        agree("make_kv_sharing_fast_prefill_common_attn_metadata", md)


def test_fast_prefill_that_returns_its_argument_does_not_synchronise(build, no_sync):
    dummy = build([3, 5, 1], [9, 20, 7], device="cuda")
    decodes = build([1, 1], [9, 20], device="cuda")
    decodes.logits_indices_padded = torch.tensor([0, 1], device="cuda")
    decodes.num_logits_indices = 2
    for md in (dummy, decodes):
        reduced = no_sync(optimized.make_kv_sharing_fast_prefill_common_attn_metadata, md)
        assert reduced is md


def _filled(package, device="cuda"):
    batch = package.PersistentBatch(6, 64, 4, 4, device)
    batch.add_request("a", [7, 3, 9], 5)
    batch.add_request("b", [2**31 - 1])
    batch.add_request("c", [2, 0], 3)
    return batch


def test_persistent_batch():
    steps = [
        ({"a": 3, "b": 2, "c": 1}, 5, 9),
        ({"a": 7, "b": 0, "c": 5},),
        ({"a": 1, "b": 1, "c": 1},),
    ]
    theirs, ours = _filled(reference), _filled(optimized)
    for step in steps:
        expected, got = theirs.build(*step), ours.build(*step)
        assert got.slot_mapping.is_cuda
        for name in ("query_start_loc", "seq_lens", "slot_mapping", "num_computed_tokens_cpu"):
            assert torch.equal(getattr(got, name), getattr(expected, name)), name
        assert got.block_table_tensor[0, :3].tolist() == [7, 3, 9]
        assert torch.equal(got.seq_lens.cpu(), got.seq_lens_cpu)
        assert torch.equal(ours.slot_mapping, theirs.slot_mapping)
    dummy = ours.build_dummy(4, 10)
    assert dummy.query_start_loc.tolist() == [0, 3, 6, 8, 10]
    assert not dummy.block_table_tensor.any()
    assert set(ours.slot_mapping.tolist()) == {-1}


def test_persistent_batch_does_not_synchronise(no_sync):
    batch = _filled(optimized)
    no_sync(batch.build, {"a": 3, "b": 2, "c": 1}, 5, 9)
    no_sync(batch.build_dummy, 3, 7)


def test_consecutive_builds_do_not_overwrite_a_copy_in_progress():
    """The host runs ahead of a busy device, so each build needs its own staging buffer."""
    batch, seen = _filled(optimized), []
    work = torch.ones(4096, 4096, device="cuda")
    for query_len in range(8):
        work = work @ work / 4096
        metadata = batch.build({"a": query_len, "b": 0, "c": 0})
        seen.append(metadata.query_start_loc.clone())
    assert [offsets.tolist()[1] for offsets in seen] == list(range(8))
