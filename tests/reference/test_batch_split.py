"""Tests of the split and of reordering in cases that published versions get wrong."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnproof.reference import CommonAttentionMetadataV32


@pytest.mark.spec("E30: 0.10.2 asserts that nothing behind the boundary is a decode")
def test_a_decode_after_a_prefill_counts_as_a_prefill(package, make_metadata):
    metadata = make_metadata([1, 9, 1], [4, 9, 6])
    assert package.split_decodes_and_prefills(metadata) == (1, 2, 1, 10)


@pytest.mark.spec("E31: it has no `require_uniform`")
@pytest.mark.parametrize(("uniform", "counts"), [(False, (3, 0, 5, 0)), (True, (2, 1, 4, 1))])
def test_a_graph_may_ask_for_decodes_of_one_length(package, make_metadata, uniform, counts):
    metadata = make_metadata([2, 2, 1], [7, 5, 3])
    made = package.split_decodes_and_prefills(metadata, 2, require_uniform=uniform)
    assert made == counts


@pytest.mark.spec(
    "E32: 0.32 counts rows with q = 0 as decodes wherever they stand in a uniform batch"
)
def test_an_idle_row_inside_the_batch_ends_the_uniform_run(package, make_metadata):
    metadata = make_metadata([2, 0, 2], [5, 4, 7])
    assert package.split_decodes_and_prefills(metadata, 2, True) == (1, 2, 2, 2)


class Rows:
    """Rows of an engine with the progress of each request; swaps move all of it."""

    def __init__(self, scheduled, computed=None, prompts=None):
        self.schedule = SimpleNamespace(num_scheduled_tokens=scheduled)
        self.req_ids = list(scheduled)
        self.arrays = [self.req_ids]
        self.swaps = 0
        if computed is not None:
            self.num_computed_tokens_cpu = np.array([*computed, 77])
            self.arrays.append(self.num_computed_tokens_cpu)
        if prompts is not None:
            self.num_prompt_tokens = np.array([*prompts, 77])
            self.arrays.append(self.num_prompt_tokens)

    def swap_states(self, i, j):
        for array in self.arrays:
            array[i], array[j] = array[j], array[i]
        self.swaps += 1


def reordered(package, *progress, threshold=1):
    rows = Rows(*progress)
    moved = package.reorder_batch_to_split_decodes_and_prefills(rows, rows.schedule, threshold)
    assert moved is (rows.swaps > 0)
    return rows.req_ids


def test_the_first_prefill_changes_places_with_the_last_decode(package):
    rows = {"long": 9, "longer": 70, "one": 1, "other": 1}
    assert reordered(package, rows) == ["other", "one", "longer", "long"]


@pytest.mark.spec("With c alone (0.11.2) the regions are decodes")
def test_a_prompt_moves_behind_a_continued_request(package):
    rows = {"prompt": 9, "continued": 9, "first token": 1}
    assert reordered(package, rows, [0, 20, 0]) == ["first token", "continued", "prompt"]


@pytest.mark.spec("Example: q = [9, 1, 9, 1], c = [0, 4, 5, 6], p = [9, 9, 9, 6], threshold 1")
def test_four_regions(package):
    rows = dict(enumerate([9, 1, 9, 1]))
    assert reordered(package, rows, [0, 4, 5, 6], [9, 9, 9, 6]) == [3, 1, 2, 0]


def test_the_first_token_of_a_prompt_is_no_decode_if_prompts_are_known(package):
    rows = {"first token": 1, "decode": 1}
    assert reordered(package, rows, [0, 5], [1, 5]) == ["decode", "first token"]


def test_many_rows_take_fewer_swaps_than_rows(package):
    lengths = {row: 1 + 8 * (row % 2) for row in range(40)}
    rows = Rows(lengths, [row % 3 for row in range(40)], [row % 2 for row in range(40)])
    package.reorder_batch_to_split_decodes_and_prefills(rows, rows.schedule)
    progress = zip(rows.req_ids, *(array.tolist() for array in rows.arrays[1:]), strict=False)
    regions = [
        3 if not c else 2 if lengths[row] > 1 else int(c < p) for row, c, p in list(progress)[:40]
    ]
    assert regions == sorted(regions)
    assert rows.swaps < 40


def test_progress_of_too_few_rows_is_refused_before_the_first_swap(package):
    rows = Rows({"long": 9, "one": 1}, [3])
    rows.num_computed_tokens_cpu = rows.num_computed_tokens_cpu[:1]
    with pytest.raises(ValueError, match="num_computed_tokens_cpu is of length 1"):
        package.reorder_batch_to_split_decodes_and_prefills(rows, rows.schedule)
    assert rows.swaps == 0


@pytest.mark.spec("Example: q = [1, 1, 1, 5], is_prefilling = [F, F, T, F], threshold 1")
@pytest.mark.parametrize(("decodes", "counts"), [(False, (2, 2, 2, 6)), (True, (3, 1, 3, 5))])
def test_a_short_extend_is_a_decode_or_a_prefill(package, make_metadata, decodes, counts):
    metadata = later(make_metadata([1, 1, 1, 5], [4, 4, 4, 0]))
    metadata.is_prefilling = torch.tensor([False, False, True, False])
    made = package.split_decodes_and_prefills(metadata, treat_short_extends_as_decodes=decodes)
    assert made == counts


@pytest.mark.parametrize("flags", [None, torch.zeros(1, dtype=torch.bool), torch.zeros(2).int()])
def test_short_extends_cannot_be_told_apart_without_flags(package, make_metadata, flags):
    metadata = later(make_metadata([1, 1], [4, 4]))
    metadata.is_prefilling = flags
    with pytest.raises(ValueError, match="is_prefilling"):
        package.split_decodes_and_prefills(metadata, treat_short_extends_as_decodes=False)


def later(metadata):
    return CommonAttentionMetadataV32(**vars(metadata))


@pytest.mark.spec("A slice of requests 1 and 2 of a batch with ranges {0: [(0, 1)], 2: [(3, 5)]}")
def test_later_fields_follow_their_rows_and_tokens(package, make_metadata):
    metadata = later(make_metadata([2, 1, 3], [2, 5, 6]))
    metadata.mm_req_doc_ranges = {0: [(0, 1)], 2: [(3, 5)]}
    metadata.positions = torch.tensor([0, 1, 4, 3, 4, 5])
    metadata.req_idx = np.array([7, 8, 9])
    metadata.seq_lens_cpu_upper_bound = metadata.seq_lens_cpu + 2
    ubatch = package.UBatchSlice(slice(1, 3), slice(2, 6))
    [child] = package.split_attn_metadata([ubatch], metadata)
    assert child.mm_req_doc_ranges == {1: [(3, 5)]}
    assert child.positions.tolist() == [4, 3, 4, 5]
    assert child.req_idx.tolist() == [8, 9]
    assert (child.seq_lens_cpu_upper_bound >= child.seq_lens_cpu).all()


@pytest.mark.spec("E57: 0.32's slices, local attention and fast prefill drop all of these fields")
def test_a_child_can_still_be_split_by_its_flags(package, make_metadata):
    metadata = later(make_metadata([1, 1, 3], [3, 5, 6]))
    metadata.is_prefilling = torch.tensor([False, True, False])
    [child] = package.split_attn_metadata([package.UBatchSlice(slice(1, 3), slice(1, 5))], metadata)
    counts = package.split_decodes_and_prefills(child, treat_short_extends_as_decodes=False)
    assert counts == (0, 2, 0, 4)
