"""Tests of the batches of a drafter (SPEC.md section 14)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.spec("Example: q = [3, 1, 2], s = [7, 4, 9], K = [2, 0, 1], one, one and two tokens")
def test_worked_example_of_dropped_tokens(package, make_metadata):
    parent = make_metadata([3, 1, 2], [7, 4, 9])
    child, indices = package.prepare_inputs(parent, [[5], [6], [7, 8]], [2, 0, 1])
    assert child.query_start_loc.tolist() == child.query_start_loc_cpu.tolist() == [0, 1, 2, 4]
    assert child.seq_lens.tolist() == child.seq_lens_cpu.tolist() == [5, 4, 9]
    assert child.num_computed_tokens_cpu.tolist() == [4, 3, 7]
    assert indices.tolist() == child.slot_mapping.tolist() == [0, 3, 4, 5]
    assert type(child.num_actual_tokens) is int
    assert parent.seq_lens.tolist() == [7, 4, 9]


@pytest.mark.spec("Example: the batch above, sums [2, 2, 3], counts [1, 1, 2]")
def test_worked_example_of_padded_tokens(package, make_metadata):
    parent = make_metadata([3, 1, 2], [7, 4, 9])
    step = SimpleNamespace(cu_num_draft_tokens=int32([2, 2, 3]))
    child, to_sample, rejected = package.prepare_inputs_padded(parent, step, int32([1, 1, 2]))
    assert to_sample.tolist() == [0, 3, 5]
    assert rejected.tolist() == [2, 0, 0]
    assert child.query_start_loc.tolist() == [0, 3, 4, 6]
    assert child.seq_lens.tolist() == [7, 4, 9]


def test_logits_indices_of_the_target_are_not_the_drafters(package, make_metadata):
    parent = make_metadata([2], [5], logits_indices_padded=int32([0, 1]), num_logits_indices=2)
    child, _ = package.prepare_inputs(parent, [[5]], [1])
    assert child.logits_indices_padded is child.num_logits_indices is None


def test_rank_shares_are_refused_where_a_token_is_rejected(package, make_metadata):
    parent = make_metadata([2], [5], dcp_local_seq_lens=int32([3]))
    child, _ = package.prepare_inputs(parent, [[5, 6]], [1])
    assert child.dcp_local_seq_lens.tolist() == [3]
    with pytest.raises(package.MetadataError, match="dcp_local_seq_lens is set"):
        package.prepare_inputs(parent, [[5]], [1])


def test_more_sampled_tokens_than_drafts_are_refused(package, make_metadata):
    parent = make_metadata([2], [5])
    with pytest.raises(package.MetadataError, match=r"sampled_token_ids\[0\] is 3 tokens"):
        package.prepare_inputs(parent, [[5, 6, 7]], [1])
    with pytest.raises(package.MetadataError, match=r"num_draft_tokens\[0\] is 2 drafts"):
        package.prepare_inputs(parent, [[5]], [2])


@pytest.mark.spec(
    "Example: q = [2, 1], s = [6, 1], N = 2 → query_start_loc [0,4,7], seq_lens [8,3]"
)
def test_worked_example_of_extended_queries(package, make_metadata):
    parent, slots = make_metadata([2, 1], [6, 1]), torch.arange(7) + 50
    child = package.extend_all_queries_by_N(parent, 2, torch.arange(9), slots)
    assert child.query_start_loc.tolist() == child.query_start_loc_cpu.tolist() == [0, 4, 7]
    assert child.seq_lens.tolist() == child.seq_lens_cpu.tolist() == [8, 3]
    assert child.num_computed_tokens_cpu.tolist() == [4, 0]
    assert child.query_start_loc.dtype == torch.int32
    assert (child.num_actual_tokens, child.max_query_len, child.max_seq_len) == (7, 4, 8)
    assert child.slot_mapping is slots
    assert parent.query_start_loc.tolist() == [0, 2, 3]


def test_rank_shares_of_longer_sequences_are_refused(package, make_metadata):
    parent = make_metadata([1], [3], dcp_local_seq_lens=int32([2]))
    with pytest.raises(package.MetadataError, match="dcp_local_seq_lens is set"):
        package.extend_all_queries_by_N(parent, 1, torch.arange(2), torch.zeros(2).long())


def test_counts_above_the_drafts_and_of_another_batch_are_refused(package, make_metadata):
    parent, step = make_metadata([2], [5]), SimpleNamespace(cu_num_draft_tokens=int32([1]))
    with pytest.raises(package.MetadataError, match=r"count\[0\] is 3, expected 0 to 2 for 1"):
        package.prepare_inputs_padded(parent, step, int32([3]))
    with pytest.raises(package.MetadataError, match="count is of length 2, expected length 1"):
        package.prepare_inputs_padded(parent, step, int32([1, 1]))
    with pytest.raises(package.MetadataError, match="num_draft_tokens is of length 2"):
        package.prepare_inputs(parent, [[5]], [1, 0])


def test_token_aligned_fields_follow_their_tokens(package, make_metadata):
    @dataclass
    class Tagged(package.CommonAttentionMetadata):
        token_tags: torch.Tensor | None = field(default=None, metadata=package.aligned("token"))

    plain = make_metadata([3, 1], [7, 4])
    parent = Tagged(**vars(plain), token_tags=torch.tensor([10, 11, 12, 13]))
    kept, _ = package.prepare_inputs(parent, [[5, 6], [7]], [2, 0])
    assert kept.token_tags.tolist() == [10, 11, 13]
    grown = package.extend_all_queries_by_N(parent, 1, torch.arange(3), torch.arange(6))
    assert grown.token_tags.tolist() == [10, 11, 12, 0, 13, 0]
    assert type(kept) is type(grown) is Tagged
