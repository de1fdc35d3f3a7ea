"""Tests of micro-batches that published versions get wrong: cuts, graph padding, aliasing."""

from __future__ import annotations

import pytest


@pytest.fixture
def split(package):
    """Function that returns the children of a batch for slices (r0, r1, t0, t1)."""

    def split_at(metadata, *cuts):
        slices = [package.UBatchSlice(slice(r0, r1), slice(t0, t1)) for r0, r1, t0, t1 in cuts]
        return package.split_attn_metadata(slices, metadata)

    return split_at


@pytest.mark.spec("E36: 0.10.2 does not cut requests at all")
def test_a_request_that_is_cut_gives_each_child_its_own_tokens(split, make_metadata):
    first, second = split(make_metadata([8], [20]), (0, 1, 0, 3), (0, 1, 3, 8))
    assert first.query_start_loc.tolist() == first.query_start_loc_cpu.tolist() == [0, 3]
    assert second.query_start_loc.tolist() == second.query_start_loc_cpu.tolist() == [0, 5]
    assert (first.max_query_len, second.max_query_len) == (3, 5)
    assert [first.seq_lens.tolist(), second.seq_lens.tolist()] == [[15], [20]]
    assert [child.num_computed_tokens_cpu.tolist() for child in (first, second)] == [[12], [15]]


@pytest.mark.spec("E35: a child's seq_lens and num_computed_tokens are views of its parent's")
@pytest.mark.parametrize(
    ("name", "added"),
    [("seq_lens", 109), ("seq_lens_cpu", 109), ("num_computed_tokens_cpu", 107)],
)
def test_writing_to_a_childs_lengths_changes_no_other_batch(split, make_metadata, name, added):
    parent = make_metadata([2, 4], [7, 9])
    left, right = split(parent, (0, 2, 0, 4), (1, 2, 4, 6))
    before = [getattr(one, name).tolist() for one in (parent, left)]
    getattr(right, name).add_(100)
    assert [getattr(one, name).tolist() for one in (parent, left)] == before
    assert getattr(right, name).tolist() == [added]


@pytest.mark.spec("E37: a slice that begins in graph padding is refused by an assertion")
@pytest.mark.spec("E38: 0.10.2 gives a child without a query max_query_len 0")
def test_graph_padding_is_cut_like_tokens(split, make_metadata):
    padded = make_metadata([3], [8], [[5]]).padded(7, 2)
    live, idle = split(padded, (0, 1, 0, 4), (0, 2, 4, 7))
    assert live.query_start_loc.tolist() == [0, 3]
    assert (live.num_actual_tokens, live.max_query_len) == (4, 3)
    assert live.slot_mapping.tolist() == [0, 1, 2, -1]
    assert idle.query_start_loc.tolist() == [0, 0, 0]
    assert idle.seq_lens.tolist() == idle.num_computed_tokens_cpu.tolist() == [8, 0]
    assert idle.slot_mapping.tolist() == [-1, -1, -1]
    assert (idle.num_reqs, idle.num_actual_tokens) == (2, 3)
    assert idle.max_query_len == padded.max_query_len == 3


@pytest.mark.spec("E39: 0.32 keeps the parent's max_seq_len where it is larger")
def test_the_longest_sequence_is_the_childs_own(split, make_metadata):
    left, right = split(make_metadata([1, 1], [900, 5]), (0, 1, 0, 1), (1, 2, 1, 2))
    assert (left.max_seq_len, right.max_seq_len) == (900, 5)
