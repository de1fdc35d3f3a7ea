"""The same operations on a CUDA device: equal to the reference there, and without a sync."""

from __future__ import annotations

import random

import pytest
import torch

import optimized
from reference import UBatchSlice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def no_sync():
    """Any host-device synchronisation raises."""

    def enter(function, *args, **kwargs):
        function(*args, **kwargs)  # compiles
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return enter


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


def test_a_batch_that_comes_back_itself_is_not_waited_for(build, no_sync):
    dummy = build([3, 5, 1], [9, 20, 7], device="cuda")
    decodes = build([1, 1], [9, 20], device="cuda")
    decodes.logits_indices_padded = torch.tensor([0, 1], device="cuda")
    decodes.num_logits_indices = 2
    for md in (dummy, decodes):
        reduced = no_sync(optimized.make_kv_sharing_fast_prefill_common_attn_metadata, md)
        assert reduced is md
