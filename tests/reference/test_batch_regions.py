"""Tests of a batch split into decodes, extends and prefills (SPEC.md section 11)."""

from __future__ import annotations

import pytest


@pytest.mark.spec("Example: q = [1, 1, 4, 3, 5, 2], s = [7, 3, 12, 4, 5, 2], threshold 1 →")
def test_worked_example(package, make_metadata):
    metadata = make_metadata([1, 1, 4, 3, 5, 2], [7, 3, 12, 4, 5, 2])
    counts = package.split_decodes_prefills_and_extends(metadata, 1)
    assert counts == (2, 2, 2, 2, 7, 7)
    assert {type(count) for count in counts} == {int}


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "threshold", "counts"),
    [
        ([1, 1], [4, 5], 1, (2, 0, 0, 2, 0, 0)),
        ([1, 4], [4, 5], 1, (1, 1, 0, 1, 4, 0)),
        ([1, 4], [4, 4], 1, (1, 0, 1, 1, 0, 4)),
        ([2, 2], [2, 2], 2, (2, 0, 0, 4, 0, 0)),
        ([5, 1], [5, 4], 1, (0, 0, 2, 0, 0, 6)),
        ([1, 5, 3], [2, 5, 9], 1, (1, 0, 2, 1, 0, 8)),
        ([3, 1, 4], [7, 9, 4], 1, (0, 2, 1, 0, 4, 4)),
    ],
)
def test_leading_runs(package, make_metadata, query_lens, seq_lens, threshold, counts):
    metadata = make_metadata(query_lens, seq_lens)
    assert package.split_decodes_prefills_and_extends(metadata, threshold) == counts


def test_a_bound_above_the_threshold_is_no_query_above_it(package, make_metadata):
    metadata = make_metadata([1, 1], [4, 5], max_query_len=3)
    assert package.split_decodes_prefills_and_extends(metadata, 2) == (2, 0, 0, 2, 0, 0)


def test_padding_belongs_to_the_last_part(package, make_metadata):
    prefills = make_metadata([1, 4, 0], [4, 4, 0], num_actual_tokens=8)
    assert package.split_decodes_prefills_and_extends(prefills) == (1, 0, 2, 1, 0, 7)
    extends = make_metadata([1, 4, 0], [4, 5, 0], num_actual_tokens=8)
    assert package.split_decodes_prefills_and_extends(extends) == (1, 2, 0, 1, 7, 0)
    decodes = make_metadata([1, 1, 0], [4, 5, 0], num_actual_tokens=8, max_query_len=2)
    assert package.split_decodes_prefills_and_extends(decodes) == (3, 0, 0, 8, 0, 0)
    assert package.split_decodes_prefills_and_extends(make_metadata([], [])) == (0,) * 6
