"""Tests of ranges of prompt positions that attend to each other (SPEC.md section 11)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

COMPUTE = "compute_mm_prefix_range_tensor"


def fill(package, query_lens, seq_lens, ranges, rows=8):
    out = np.full((rows, 2), 7, dtype=np.int32)
    offsets = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(seq_lens, dtype=torch.int32)
    written = package.fill_mm_prefix_query_ranges(out, ranges, offsets, lengths)
    assert type(written) is int
    assert (out[written:] == 7).all()
    return out[:written].tolist()


@pytest.mark.spec("Example: q = [3, 2], s = [6, 2], ranges {0: [(1, 4)], 1: [(0, 0)]} write")
def test_worked_example(package):
    written = fill(package, [3, 2], [6, 2], {0: [(1, 4)], 1: [(0, 0)]})
    assert written == [[1, 4], [1, 4], [-1, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize(
    "ranges", [None, {}, {0: []}, {0: [(0, 2)]}, {0: [(6, 9)]}, {0: [(4, 4)], 1: [(1, 0)]}]
)
def test_without_a_range_of_a_token_nothing_is_written(package, ranges):
    assert fill(package, [3, 2], [6, 2], ranges) == []


def test_ends_are_inclusive_and_ranges_reach_beyond_the_chunk(package):
    written = fill(package, [4], [8], {0: [(6, 90), (1, 4)]})
    assert written == [[1, 4], [-1, -1], [6, 90], [6, 90]]


@pytest.mark.parametrize(
    ("ranges", "field"),
    [
        ({2: [(0, 1)]}, "mm_prefix_range is of row 2, expected rows below 2"),
        ({-1: [(0, 1)]}, "mm_prefix_range"),
        ({1: [(0, 3), (3, 4)]}, r"mm_prefix_range\[1\] is 0..3 and 3..4, expected ranges that do"),
        ({0: [(-1, 3)]}, r"mm_prefix_range\[0\] is -1..3, expected positions of at least 0"),
    ],
)
def test_malformed_ranges_are_refused(package, ranges, field):
    with pytest.raises(package.MetadataError, match=field):
        fill(package, [3, 2], [6, 2], ranges)
    with pytest.raises(package.MetadataError, match=field):
        getattr(package, COMPUTE)(ranges, 2, torch.device("cpu"))


def test_a_small_buffer_is_refused_before_it_is_written(package):
    with pytest.raises(package.MetadataError, match="out is of length 4, expected at least 5"):
        fill(package, [3, 2], [6, 2], {0: [(1, 4)]}, rows=4)


@pytest.mark.spec("Example: {0: [(1, 4), (6, 9)], 2: [(0, 3)]} for 3 sequences gives")
def test_ranges_as_a_tensor(package):
    made = package.compute_mm_prefix_range_tensor({0: [(1, 4), (6, 9)], 2: [(0, 3)]}, 3, "cpu")
    assert made.tolist() == [[[1, 4], [6, 9]], [[0, 0], [0, 0]], [[0, 3], [0, 0]]]
    assert made.dtype == torch.int32


@pytest.mark.parametrize("ranges", [None, {}, {0: []}, {0: [(0, 0)], 1: [(5, 5)]}])
def test_no_range_gives_no_tensor(package, ranges):
    assert package.compute_mm_prefix_range_tensor(ranges, 2, torch.device("cpu")) is None
