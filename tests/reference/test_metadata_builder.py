"""Tests of the V0 metadata builder of both packages (SPEC.md section 7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof.harness.cases.engines.script_v0 import BLOCKS, ROWS, input_builder, request
from attnproof.harness.cases.engines.v0 import InterData, MetadataV0, PlaceholderMap


@pytest.fixture
def engine():
    """Input builder with blocks of two tokens; sequence n owns the blocks from 10 n on."""
    return input_builder()


@pytest.fixture
def builder(package, engine):
    class Builder(package.CommonMetadataBuilder):
        _metadata_cls = MetadataV0

    return Builder(engine)


def test_a_prompt_and_a_decode(engine, builder):
    engine.inter_data_list = [request(1, 3, 2), request(2, 1, 6)]
    made = builder.build([5, 7], [3, 1], -1, 4)
    assert (made.num_prefills, made.num_prefill_tokens, made.num_decode_tokens) == (1, 3, 1)
    assert made.slot_mapping.tolist() == [22, 23, 24, 46]
    assert made.slot_mapping.dtype == torch.int64
    assert made.block_tables.tolist() == [[10, 11, 12, 0], [20, 21, 22, 23]]
    assert made.query_start_loc.tolist() == [0, 3, 4]
    assert made.seq_start_loc.tolist() == [0, 5, 12]
    assert made.context_lens_tensor.tolist() == [2, 6]
    assert (made.max_query_len, made.max_prefill_seq_len, made.max_decode_seq_len) == (3, 5, 7)
    tensors = (made.block_tables, made.seq_lens_tensor, made.query_start_loc, made.seq_start_loc)
    assert {tensor.dtype for tensor in tensors} == {torch.int32}
    assert made.use_cuda_graph is False


def test_a_prompt_computed_in_one_step_reads_no_blocks(engine, builder):
    engine.chunked_prefill_enabled = False
    engine.inter_data_list = [request(1, 3, 0)]
    made = builder.build([3], [3], -1, 3)
    assert made.block_tables.shape == (1, 0)
    assert made.slot_mapping.tolist() == [20, 21, 22]


def test_a_prefix_cache_hit_reads_all_blocks(engine, builder):
    engine.chunked_prefill_enabled = False
    engine.inter_data_list = [request(1, 1, 6)]
    engine.inter_data_list[0].is_prompt = engine.inter_data_list[0].prefix_cache_hit = True
    assert builder.build([7], [1], -1, 1).block_tables.tolist() == [[10, 11, 12, 13]]


def test_a_window_keeps_the_last_blocks_of_a_decode(engine, builder):
    engine.inter_data_list = [request(1, 1, 6)]
    engine.inter_data_list[0].curr_sliding_window_blocks = [2]
    engine.inter_data_list[0].seq_lens = [3]
    made = builder.build([3], [1], -1, 1)
    assert made.block_tables.tolist() == [[12, 13]]
    assert made.max_decode_seq_len == 3
    assert made.slot_mapping.tolist() == [26]


@pytest.mark.spec("E15: published code writes the ids into the runner's array")
def test_a_graph_is_padded_and_the_runners_tables_do_not_change(engine, builder):
    engine.runner.graph_block_tables[:] = 77
    engine.inter_data_list = [request(1, 1, 2)]
    made = builder.build([3, 1], [1], 1, 2)
    assert made.slot_mapping.tolist() == [22, -1]
    assert made.num_decode_tokens == 2
    assert made.block_tables.tolist() == [[10, 11] + [0] * (BLOCKS - 2), [0] * BLOCKS]
    assert made.use_cuda_graph is True
    assert (engine.runner.graph_block_tables == 77).all()


def test_a_profile_run(engine, builder):
    engine.inter_data_list = [InterData(True, [1], [[7, 7]], [2], [2], [2], [0], [0], None)]
    made = builder.build([2], [2], -1, 2)
    assert made.slot_mapping.tolist() == [-1, -1]
    assert made.block_tables.shape == (1, 0)


@pytest.mark.spec("E50: published code raises TypeError where all are None")
def test_a_profile_run_whose_tables_are_none(engine, builder):
    tables = {1: None, 2: None}
    engine.inter_data_list = [
        InterData(True, [1, 2], [[7, 7], [7]], [2, 1], [2, 1], [2, 1], [0, 0], [0, 0], tables)
    ]
    made = builder.build([2, 1], [2, 1], -1, 3)
    assert made.slot_mapping.tolist() == [-1, -1, -1]
    assert made.block_tables.shape == (2, 0)


@pytest.mark.spec("E52: a published builder that was never prepared has no lists")
def test_a_new_builder_is_prepared(package, engine):
    class Builder(package.CommonMetadataBuilder):
        _metadata_cls = MetadataV0

    new = Builder(engine)
    new._add_seq_group(request(1, 1, 3), True)
    assert new.build([4], [1], -1, 1).slot_mapping.tolist() == [23]


@pytest.mark.spec("E54: its metadata holds the caller's own list of lengths")
def test_built_lengths_do_not_follow_the_engines_lists(engine, builder):
    engine.inter_data_list = [request(1, 1, 3)]
    lengths = [4]
    made = builder.build(lengths, [1], -1, 1)
    lengths[0] += 1
    assert made.seq_lens == [4]


@pytest.mark.parametrize("kind", [np.int32, np.int64, int])
def test_block_ids_of_numpys_types(engine, builder, kind):
    group = request(1, 1, 3)
    group.block_tables = {1: [kind(10), kind(11)]}
    engine.inter_data_list = [group]
    made = builder.build([4], [1], -1, 1)
    assert made.slot_mapping.tolist() == [23]
    assert made.block_tables.tolist() == [[10, 11]]


@pytest.mark.parametrize("prompt", [True, False])
def test_tables_are_read_when_a_group_is_added(builder, prompt):
    group = request(1, 2 if prompt else 1, 3)
    builder._add_seq_group(group, True)
    group.block_tables[1][0] = 77
    tokens = 2 if prompt else 1
    assert builder.build([3 + tokens], [tokens], -1, tokens).block_tables[0, 0] == 10


def test_offsets_beyond_int32_are_errors(engine, builder):
    engine.inter_data_list = [request(1, 1, 3), request(2, 1, 3)]
    with pytest.raises(ValueError, match="in all"):
        builder.build([2**30, 2**30], [1, 1], -1, 2)


def test_placeholder_maps_are_merged_and_not_changed(engine, builder):
    groups = [request(1, 3, 0, image=True), request(2, 5, 0, image=True)]
    given = [dict(group.multi_modal_placeholder_maps) for group in groups]
    engine.inter_data_list = groups
    maps = builder.build([3, 5], [3, 5], -1, 8).multi_modal_placeholder_index_maps
    assert maps["image"].dest == [0, 1, 3, 4, 5]
    assert maps["image"].src == [0, 1, 2, 3, 4]
    assert given[0]["image"] == PlaceholderMap([range(2)], 2, [range(2)], 3)


def test_the_backend_makes_metadata_without_a_metadata_class(package, engine):
    engine.inter_data_list = [request(1, 1, 2)]
    made = package.CommonMetadataBuilder(engine).build([3], [1], -1, 1)
    assert isinstance(made, MetadataV0)


def test_a_subclass_may_add_groups_in_its_own_way(package, engine):
    class Builder(package.CommonMetadataBuilder):
        _metadata_cls = MetadataV0

        def _add_seq_group(self, inter_data, chunked_prefill_enabled):
            super()._add_seq_group(inter_data, chunked_prefill_enabled)
            self.block_tables[-1] = [99]

    engine.inter_data_list = [request(1, 1, 2), request(2, 1, 2)]
    assert Builder(engine).build([3, 3], [1, 1], -1, 2).block_tables.tolist() == [[99], [99]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_lens": [2]}, "query_lens is 2, expected 1, as in every decode"),
        ({"context_lens": [2, 3]}, "context_lens is of length 2, expected length 1"),
        ({"orig_seq_lens": [9]}, "orig_seq_lens is 9, expected context_len . query_len = 4"),
        ({"block_tables": {1: [10]}}, "block_table is 1 blocks, expected at least 2"),
        ({"block_tables": {1: [10, 2**31]}}, "block_tables is .*, expected ids below 2..31"),
        ({"block_tables": {1: [-1, 11]}}, "block_tables is -1, expected at least 0"),
    ],
)
def test_a_malformed_group_does_not_change_the_builder(package, engine, builder, change, message):
    engine.inter_data_list = [request(2, 1, 3), request(1, 1, 3)]
    for name, value in change.items():
        setattr(engine.inter_data_list[1], name, value)
    with pytest.raises(package.MetadataError, match=message):
        builder.build([4, 4], [1, 1], -1, 2)
    assert builder.slot_mapping == builder.block_tables == builder.context_lens == []
    engine.inter_data_list = [request(2, 1, 3)]
    assert builder.build([4], [1], -1, 1).slot_mapping.tolist() == [43]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([4, 1], [1], 1, 3), "batch_size is 3, expected sequences and padding, 2"),
        (([4, 1, 1, 1, 1], [1], 4, 5), f"batch_size is 5, expected at most {ROWS}"),
        (([4], [1], 1, 2), "seq_lens is of length 1, expected length 2"),
        (([4], [1, 1], -1, 1), "query_lens is of length 2, expected length 1"),
        (([4], [0], -1, 1), "query_lens is without any token"),
        (([4], [2], -1, 1), "query_lens is 2 tokens, expected 1, as many as were added"),
    ],
)
def test_lengths_of_another_batch_are_errors(package, engine, builder, arguments, message):
    engine.inter_data_list = [request(1, 1, 3)]
    with pytest.raises(package.MetadataError, match=message):
        builder.build(*arguments)


def test_a_graph_holds_no_prompt(package, engine, builder):
    engine.inter_data_list = [request(1, 3, 0)]
    with pytest.raises(package.MetadataError, match="graphs hold decodes only"):
        builder.build([3], [3], 0, 1)
    engine.runner.graph_block_tables = np.zeros((ROWS, 1), dtype=np.int32)
    engine.inter_data_list = [request(1, 1, 3)]
    with pytest.raises(package.MetadataError, match="block_tables is 2 blocks long"):
        builder.build([4], [1], 0, 1)
