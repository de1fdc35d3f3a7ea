"""Tests of slice_query_start_locs, _make_metadata_with_slice and split_attn_metadata."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof import optimized
from attnproof.reference import MetadataError, UBatchSlice


def _slices(*bounds: tuple[int, int, int, int]) -> list[UBatchSlice]:
    return [UBatchSlice(slice(r0, r1), slice(t0, t1)) for r0, r1, t0, t1 in bounds]


def test_a_slice_cut_at_both_ends(build, agree):
    md = build([8, 8, 8], [32, 20, 8])
    children = agree(
        "split_attn_metadata", _slices((0, 1, 0, 4), (0, 2, 4, 12), (1, 3, 12, 24)), md
    )
    assert children[1].query_start_loc.tolist() == [0, 4, 8]
    assert children[1].seq_lens.tolist() == [32, 16]


def test_a_continued_request_has_computed_tokens(build, agree):
    md = build([8, 8, 8], [32, 20, 8])
    children = agree("split_attn_metadata", _slices((0, 2, 0, 12), (1, 3, 12, 24)), md)
    assert children[1].num_computed_tokens_cpu.tolist() == [16, 0]


def test_optional_fields_follow_their_rows_and_tokens(build, agree):
    md = build(
        [3, 0, 4],
        [5, 0, 9],
        causal=False,
        encoder_seq_lens=np.array([7, 8, 9]),
        dcp_local_seq_lens=torch.tensor([3, 0, 5], dtype=torch.int32),
        logits_indices_padded=torch.tensor([0, 2, 3, 6, 1, 1], dtype=torch.int32),
        num_logits_indices=4,
    )
    children = agree("split_attn_metadata", _slices((0, 1, 0, 3), (1, 3, 3, 7)), md)
    assert isinstance(children, MetadataError)  # request 1 is empty: token 3 is request 2's
    children = agree("split_attn_metadata", _slices((0, 2, 0, 3), (2, 3, 3, 7)), md)
    assert isinstance(children, MetadataError)
    children = agree("split_attn_metadata", _slices((0, 1, 0, 3), (2, 3, 3, 7)), md)
    assert children[1].logits_indices_padded.tolist() == [0, 3]


def test_a_lost_tail_has_no_dcp_lengths(build, agree):
    md = build([4], [6], dcp_local_seq_lens=torch.tensor([3], dtype=torch.int32))
    error = agree("_make_metadata_with_slice", _slices((0, 1, 0, 3))[0], md)
    assert isinstance(error, MetadataError)
    assert error.field == "dcp_local_seq_lens"


def test_dummy_run_keeps_the_parents_longest_query(build, agree):
    md = build([0, 0], [0, 0], num_actual_tokens=4, slot_mapping=torch.full((4,), -1))
    md.max_query_len = 3
    child = agree("_make_metadata_with_slice", _slices((0, 1, 0, 4))[0], md)
    assert child.max_query_len == 3
    agree("split_attn_metadata", _slices((0, 1, 0, 2), (1, 2, 2, 4)), md)


def test_graph_padding_after_the_last_request(build, agree):
    md = build([2, 2, 0, 0], [4, 4, 0, 0], num_actual_tokens=8, slot_mapping=torch.arange(8))
    agree("split_attn_metadata", _slices((0, 1, 0, 2), (1, 4, 2, 8)), md)
    agree("split_attn_metadata", _slices((0, 2, 0, 6), (1, 4, 6, 8)), md)


@pytest.mark.parametrize(
    "wide", ["query_start_loc", "query_start_loc_cpu", "seq_lens_cpu", "num_computed_tokens_cpu"]
)
def test_mixed_dtypes_are_kept(build, agree, wide):
    md = build([3, 4], [5, 6])
    setattr(md, wide, getattr(md, wide).to(torch.int64))
    child = agree("_make_metadata_with_slice", _slices((0, 2, 1, 6))[0], md)
    assert getattr(child, wide).dtype is torch.int64


@pytest.mark.parametrize(
    "bounds", [(0, 0, 0, 1), (0, 3, 0, 2), (0, 1, 2, 2), (0, 1, 0, 9), (0, 1, 0, 5), (1, 2, 0, 5)]
)
def test_slices_that_do_not_fit(build, agree, bounds):
    md = build([4, 4], [4, 4])
    assert isinstance(agree("split_attn_metadata", _slices(bounds), md), MetadataError)


def test_errors_in_the_order_of_the_reference(build, agree):
    md = build([4, 4], [4, 4], logits_indices_padded=torch.tensor([3]))
    agree("split_attn_metadata", _slices((0, 1, 0, 9)), md)
    md.query_start_loc_cpu = torch.tensor([0, 5, 4], dtype=torch.int32)
    agree("split_attn_metadata", _slices((0, 1, 0, 9)), md)
    assert isinstance(agree("split_attn_metadata", [], None), TypeError)
    assert agree("split_attn_metadata", [], build([4], [4])) == []


def test_children_own_their_offsets_and_lengths(build):
    md = build([4, 4, 4], [8, 8, 8])
    slices = _slices((0, 2, 0, 6), (1, 3, 6, 12))
    first, second = optimized.split_attn_metadata(slices, md)
    unmoved = [second.query_start_loc.clone(), second.seq_lens.clone(), md.seq_lens.clone()]
    for tensor in (first.query_start_loc, first.query_start_loc_cpu, first.seq_lens):
        tensor.fill_(99)
    assert first.seq_lens_cpu.tolist() == [8, 6]
    kept = [second.query_start_loc, second.seq_lens, md.seq_lens]
    assert all(torch.equal(a, b) for a, b in zip(kept, unmoved, strict=True))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("strided", [False, True])
def test_slice_query_start_locs(build, agree, dtype, strided):
    md = build([3, 0, 5, 2], [3, 0, 5, 2], dtype=dtype, strided=strided)
    for start in range(4):
        for stop in range(start + 1, 5):
            agree("slice_query_start_locs", md.query_start_loc, slice(start, stop))


@pytest.mark.parametrize(
    "wrong", [slice(0, 0), slice(0, 5), slice(0, 2, 2), slice(None, 2), slice(-1, 2), 3]
)
def test_slice_query_start_locs_rejects(agree, wrong):
    offsets = torch.tensor([0, 1, 2, 3], dtype=torch.int32)
    assert isinstance(agree("slice_query_start_locs", offsets, wrong), (MetadataError, TypeError))
