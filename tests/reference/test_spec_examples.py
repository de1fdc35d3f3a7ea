"""Tests of the worked examples and errata of SPEC.md, for both packages."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch


@pytest.mark.spec("Example, q = [1,1,2,5,1]: threshold 1 → (2,3,2,8); 2 → (3,2,4,6)")
@pytest.mark.parametrize(
    ("threshold", "uniform", "counts"),
    [
        (1, False, (2, 3, 2, 8)),
        (2, False, (3, 2, 4, 6)),
        (2, True, (2, 3, 2, 8)),
        (5, False, (5, 0, 10, 0)),
        (5, True, (2, 3, 2, 8)),
    ],
)
def test_split_decodes_and_prefills(package, make_metadata, threshold, uniform, counts):
    metadata = make_metadata([1, 1, 2, 5, 1], [1, 1, 2, 5, 1])
    assert package.split_decodes_and_prefills(metadata, threshold, uniform) == counts


@pytest.mark.spec("E2: zero-length rows at the end")
def test_split_counts_padded_rows_as_decodes_of_a_uniform_batch(package, make_metadata):
    metadata = make_metadata([2, 2, 2, 0], [2, 2, 2, 0], num_actual_tokens=8)
    assert package.split_decodes_and_prefills(metadata, 2, True) == (4, 0, 8, 0)


def test_split_of_no_requests(package, make_metadata):
    metadata = make_metadata([], [])
    assert package.split_decodes_and_prefills(metadata) == (0, 0, 0, 0)
    assert package.split_decodes_and_prefills(metadata, 2, True) == (0, 0, 0, 0)


def test_reorder_makes_the_fewest_swaps(package):
    tokens = [9, 1, 7, 1, 1]
    swaps = []
    batch = SimpleNamespace(req_ids=list("abcde"), swap_states=lambda i, j: swaps.append((i, j)))
    schedule = SimpleNamespace(num_scheduled_tokens=dict(zip("abcde", tokens, strict=True)))
    assert package.reorder_batch_to_split_decodes_and_prefills(batch, schedule)
    assert swaps == [(0, 4), (2, 3)]


def test_reorder_does_not_change_an_ordered_batch(package):
    batch = SimpleNamespace(req_ids=["a", "b"], swap_states=pytest.fail)
    schedule = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 5})
    assert package.reorder_batch_to_split_decodes_and_prefills(batch, schedule) is False


@pytest.mark.spec("E3: 0.11 subtracts an absolute token index from a rebased offset")
def test_slice_cut_at_both_ends(package, make_metadata):
    metadata = make_metadata([8, 8, 8], [32, 20, 8])
    slices = [
        package.UBatchSlice(slice(0, 1), slice(0, 4)),
        package.UBatchSlice(slice(0, 2), slice(4, 12)),
        package.UBatchSlice(slice(1, 3), slice(12, 24)),
    ]
    child = package.split_attn_metadata(slices, metadata)[1]
    assert child.query_start_loc.tolist() == [0, 4, 8]
    assert child.seq_lens.tolist() == [32, 16]
    assert child.num_computed_tokens_cpu.tolist() == [28, 12]


@pytest.mark.spec("E4: published code keeps the parent's num_computed_tokens")
def test_continued_request_has_more_computed_tokens(package, make_metadata):
    metadata = make_metadata([8, 8, 8], [32, 20, 8])
    child = package.split_attn_metadata(
        [
            package.UBatchSlice(slice(0, 2), slice(0, 12)),
            package.UBatchSlice(slice(1, 3), slice(12, 24)),
        ],
        metadata,
    )[1]
    assert child.num_computed_tokens_cpu.tolist() == [16, 0]


def test_slice_of_a_dummy_run_keeps_the_parents_bound(package, make_metadata):
    metadata = make_metadata([0, 0], [0, 0], num_actual_tokens=4, max_query_len=2)
    [child] = package.split_attn_metadata([package.UBatchSlice(slice(0, 2), slice(0, 4))], metadata)
    assert child.max_query_len == 2
    assert child.query_start_loc.tolist() == [0, 0, 0]


@pytest.mark.spec("E5: published code drops causal, logits_indices_padded")
def test_optional_fields_survive_slicing(package, make_metadata):
    metadata = make_metadata(
        [3, 2],
        [5, 4],
        causal=False,
        logits_indices_padded=torch.tensor([2, 4, 99], dtype=torch.int32),
        num_logits_indices=2,
        dcp_local_seq_lens=torch.tensor([3, 2], dtype=torch.int32),
    )
    [child] = package.split_attn_metadata([package.UBatchSlice(slice(1, 2), slice(3, 5))], metadata)
    assert child.causal is False
    assert child.logits_indices_padded.tolist() == [1]
    assert child.num_logits_indices == 1
    assert child.dcp_local_seq_lens.tolist() == [2]


@pytest.mark.spec("Slicing (section 3), local attention (section 4) and padding return an instance")
def test_a_subclass_survives(package, make_metadata):
    @dataclass
    class Extended(package.CommonAttentionMetadata):
        positions: torch.Tensor = field(default=None, metadata=package.aligned("token"))
        is_prefilling: torch.Tensor = field(default=None, metadata=package.aligned("request"))
        step: int = 0

    plain = make_metadata([3, 2], [5, 2])
    metadata = Extended(**vars(plain))
    metadata.positions = torch.tensor([2, 3, 4, 0, 1])
    metadata.is_prefilling = torch.tensor([False, True])
    metadata.step = 9
    [child] = package.split_attn_metadata([package.UBatchSlice(slice(1, 2), slice(3, 5))], metadata)
    virtual = package.make_local_attention_virtual_batches(2, metadata, 1)
    padded = metadata.padded(6, 3)
    assert type(child) is type(virtual) is type(padded) is Extended
    assert child.step == virtual.step == padded.step == 9
    assert child.positions.tolist() == [0, 1]
    assert child.is_prefilling.tolist() == [True]
    assert virtual.positions.tolist() == [2, 3, 4, 0, 1]
    assert virtual.is_prefilling.tolist() == [False, False, True]
    assert padded.positions.tolist() == [2, 3, 4, 0, 1, 0]
    assert padded.is_prefilling.tolist() == [False, True, False]


def test_flags_are_bools(package, make_metadata):
    with pytest.raises(TypeError, match="require_uniform is int, expected bool"):
        package.split_decodes_and_prefills(make_metadata([1], [1]), 1, 1)
    with pytest.raises(TypeError, match="causal is int, expected bool"):
        package.split_decodes_and_prefills(make_metadata([1], [1], causal=1))


@pytest.mark.spec("E1: published `max_query_len` of local attention")
@pytest.mark.spec("Example: C = 4, B = 2, q = [4,10,5], s = [6,17,9]")
def test_local_attention_example(package, make_metadata):
    rows = [list(range(10)), list(range(10, 20)), list(range(20, 30))]
    virtual = package.make_local_attention_virtual_batches(
        4, make_metadata([4, 10, 5], [6, 17, 9], rows), 2
    )
    assert virtual.query_start_loc.tolist() == [0, 2, 4, 5, 9, 13, 14, 18, 19]
    assert virtual.seq_lens.tolist() == [4, 2, 4, 4, 4, 1, 4, 1]
    assert virtual.num_computed_tokens_cpu.tolist() == [2, 0, 3, 0, 0, 0, 0, 0]
    assert virtual.block_table_tensor.tolist() == [
        [0, 1],
        [2, 3],
        [12, 13],
        [14, 15],
        [16, 17],
        [18, 19],
        [22, 23],
        [24, 25],
    ]
    assert type(virtual.max_query_len) is int


@pytest.mark.spec("E7: for q = s = 0 published code gives")
def test_local_attention_of_an_empty_row(package, make_metadata):
    virtual = package.make_local_attention_virtual_batches(
        4, make_metadata([0], [0], [[7, 8, 9]]), 2
    )
    assert virtual.seq_lens.tolist() == [0]
    assert virtual.block_table_tensor.tolist() == [[7, 8]]


@pytest.mark.spec("E6: published code divides by zero at the default 0")
def test_local_attention_needs_a_block_size(package, make_metadata):
    with pytest.raises(package.MetadataError, match="block_size is 0, expected at least 1"):
        package.make_local_attention_virtual_batches(4, make_metadata([1], [1]))


@pytest.mark.spec("Example: start_idx 2, length 10, B 4, table [0,1,0]")
def test_slots_of_a_windowed_sequence(package):
    slots: list[int] = []
    package.compute_slot_mapping(False, slots, 0, 10, 0, 2, 4, {0: [0, 1, 0]})
    assert slots == [-1, -1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_slots_of_a_profile_run(package):
    slots = [5]
    package.compute_slot_mapping(True, slots, 0, 3, 0, 0, 4, None)
    assert slots == [5, -1, -1, -1]


def test_start_index_of_a_windowed_prompt(package):
    assert package.compute_slot_mapping_start_idx(True, 10, 0, 4) == 6
    assert package.compute_slot_mapping_start_idx(False, 10, 0, 4) == 0
    assert package.compute_slot_mapping_start_idx(True, 10, 0, None) == 0


def test_slot_beyond_the_block_table_does_not_change_the_list(package):
    slots = [5]
    with pytest.raises(package.MetadataError, match="1 blocks, expected at least 2"):
        package.compute_slot_mapping(False, slots, 0, 5, 0, 0, 4, {0: [3]})
    assert slots == [5]


def test_slots_of_a_batch(package):
    slots = package.build_slot_mapping(
        torch.tensor([0, 2, 2, 5], dtype=torch.int32),
        torch.tensor([3, 0, 6], dtype=torch.int32),
        torch.tensor([[7, 2**31 - 1], [99, 99], [4, 5]], dtype=torch.int32),
        4,
        num_padded_tokens=6,
    )
    assert slots.dtype == torch.int64
    assert slots.tolist() == [31, (2**31 - 1) * 4, 22, 23, -1, -1]


def test_no_block_tables(package):
    assert package.is_block_tables_empty(None) is True
    assert package.is_block_tables_empty({}) is True
    assert package.is_block_tables_empty({1: None}) is True
    assert package.is_block_tables_empty({1: None, 2: []}) is False


FAST_PREFILL = "make_kv_sharing_fast_prefill_common_attn_metadata"


def sampled(make_metadata, indices, query_lens=(15, 5, 8), seq_lens=(41, 31, 40), **fields):
    logits = torch.tensor([*indices, 99, 99], dtype=torch.int32)
    return make_metadata(
        list(query_lens),
        list(seq_lens),
        logits_indices_padded=logits,
        num_logits_indices=len(indices),
        **fields,
    )


@pytest.mark.spec("Example: indices [14,18,19,27], query_start_loc [0,15,20,28]")
def test_fast_prefill_counts_the_sampled_tokens(package, make_metadata):
    metadata = sampled(make_metadata, [14, 18, 19, 27])
    reduced = getattr(package, FAST_PREFILL)(metadata)
    assert reduced.query_start_loc.tolist() == [0, 1, 3, 4]
    assert reduced.query_start_loc_cpu.tolist() == [0, 1, 3, 4]
    assert (reduced.max_query_len, reduced.num_actual_tokens) == (2, 4)
    assert type(reduced.max_query_len) is type(reduced.num_actual_tokens) is int


@pytest.mark.spec("E8: published code asserts there")
def test_fast_prefill_of_a_dummy_run_is_the_batch_itself(package, make_metadata):
    metadata = make_metadata([4, 4], [4, 4])
    assert getattr(package, FAST_PREFILL)(metadata) is metadata


def test_fast_prefill_of_decodes_is_the_batch_itself(package, make_metadata):
    metadata = sampled(make_metadata, [0, 1], [1, 1], [5, 7])
    assert getattr(package, FAST_PREFILL)(metadata) is metadata


@pytest.mark.spec("E20: published code drops the logits fields")
@pytest.mark.spec("E42: 0.32 keeps no num_computed_tokens_cpu and derives it from the reduced")
@pytest.mark.spec("the result does **not** have `c == s - q` and `validate` refuses it")
def test_fast_prefill_keeps_all_other_fields(package, make_metadata):
    shares = torch.tensor([20, 16, 20], dtype=torch.int32)
    metadata = sampled(make_metadata, [14, 18, 27], causal=False, dcp_local_seq_lens=shares)
    reduced = getattr(package, FAST_PREFILL)(metadata)
    assert reduced.causal is True
    assert reduced.logits_indices_padded is metadata.logits_indices_padded
    assert reduced.num_logits_indices == 3
    assert reduced.dcp_local_seq_lens is shares
    assert reduced.seq_lens.tolist() == [41, 31, 40]
    assert reduced.num_computed_tokens_cpu.tolist() == [26, 26, 32]
    assert len(reduced.slot_mapping) == 28
    with pytest.raises(package.MetadataError, match="num_computed_tokens_cpu"):
        package.validate(reduced)


@pytest.mark.spec("The order of the indices does not matter, and an index that is listed twice")
@pytest.mark.spec("belongs to nobody and is not counted")
@pytest.mark.spec("E53: a logits index in graph padding raises RuntimeError, or counts")
def test_fast_prefill_accepts_indices_in_any_order(package, make_metadata):
    metadata = sampled(make_metadata, [29, 27, 14, 14, 28, 19], num_actual_tokens=30)
    reduced = getattr(package, FAST_PREFILL)(metadata)
    assert reduced.query_start_loc.tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize("index", [-1, 28])
def test_fast_prefill_refuses_an_index_that_is_not_a_token(package, make_metadata, index):
    with pytest.raises(package.MetadataError, match=r"logits_indices_padded\[1\]"):
        getattr(package, FAST_PREFILL)(sampled(make_metadata, [14, index]))


@pytest.mark.spec("E21: published code forgets `staticmethod`")
def test_get_builder_cls_of_a_subclassed_backend_works_on_an_instance(package):
    class Backend:
        pass

    class Builder:
        pass

    made = package.subclass_attention_backend("Local_", Backend, Builder)
    assert made.__name__ == "Local_Backend"
    assert issubclass(made, Backend)
    assert made.get_builder_cls() is made().get_builder_cls() is Builder


@pytest.mark.spec("(T, H, D) → (batch, T/batch, H, D), a view")
def test_shapes_of_spec_decode(package):
    query = torch.arange(24.0).reshape(6, 2, 2)
    shaped = package.reshape_query_for_spec_decode(query, 3)
    assert shaped.shape == (3, 2, 2, 2)
    assert shaped.data_ptr() == query.data_ptr()
    back = package.reshape_attn_output_for_spec_decode(shaped)
    assert torch.equal(back, query)
    assert back.data_ptr() == query.data_ptr()
    assert package.reshape_attn_output_for_spec_decode(query) is query


@pytest.mark.parametrize("batch_size", [4, 0, -1])
def test_batch_size_that_does_not_divide_the_query(package, batch_size):
    with pytest.raises(package.MetadataError, match="batch_size"):
        package.reshape_query_for_spec_decode(torch.zeros(6, 2, 2), batch_size)


@pytest.mark.spec("Example: query_start_loc [0,5,21,21,30]")
def test_programs_of_the_causal_convolution(package):
    offsets = torch.tensor([0, 5, 21, 21, 30], dtype=torch.int32)
    nums_dict, batch_ptr, chunk_ptr = package.compute_causal_conv1d_metadata(offsets)
    programs = nums_dict[8]
    assert programs["nums"].tolist() == [1, 2, 0, 2]
    assert programs["mlist"].tolist() == [0, 1, 1, 3, 3]
    assert programs["offsetlist"].tolist() == [0, 0, 1, 0, 1]
    assert (programs["tot"], programs["mlist_len"]) == (5, 5)
    assert programs["batch_ptr"] is batch_ptr
    assert programs["token_chunk_offset_ptr"] is chunk_ptr
    assert batch_ptr.tolist() == [0, 1, 1, 3, 3] + [-1] * 2043
    assert chunk_ptr.tolist() == [0, 0, 1, 0, 1] + [-1] * 2043
    dtypes = [programs[name].dtype for name in ("nums", "mlist", "offsetlist", "batch_ptr")]
    assert dtypes == [torch.int32, torch.int64, torch.int32, torch.int32]


@pytest.mark.spec("Example, B = 4, `a` with blocks [7, 3] and 5 computed tokens")
@pytest.mark.spec("Example: `build_dummy(4, 10)` → query_start_loc [0,3,6,8,10]")
def test_persistent_batch_builds_a_padded_batch(package):
    batch = package.PersistentBatch(4, 10, 3, 4)
    batch.add_request("a", [7, 3], 5)
    batch.add_request("b", [1])
    metadata = batch.build({"a": 2, "b": 1}, 3, 5)
    assert metadata.query_start_loc.tolist() == [0, 2, 3, 3]
    assert metadata.seq_lens.tolist() == [7, 1, 0]
    assert metadata.slot_mapping.tolist() == [13, 14, 4, -1, -1]
    assert batch.build_dummy(4, 10).query_start_loc.tolist() == [0, 3, 6, 8, 10]
