"""Tests of the choice of micro-batches (SPEC.md section 11)."""

from __future__ import annotations

import numpy as np
import pytest


def bounds(slices):
    return [(*_of(one.request_slice), *_of(one.token_slice)) for one in slices]


def _of(part):
    assert type(part.start) is type(part.stop) is int
    return part.start, part.stop


def create(package, scheduled, tokens, rows, ubatches, *point, dtype=np.int32):
    given = np.array(scheduled, dtype=dtype)
    slices, padded = package.maybe_create_ubatch_slices(True, given, tokens, rows, ubatches, *point)
    return bounds(slices), bounds(padded)


@pytest.mark.spec("Example: [4, 3] scheduled tokens, padded to 8 tokens and 3 rows, two micro-b")
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_worked_example(package, dtype):
    slices, padded = create(package, [4, 3], 8, 3, 2, dtype=dtype)
    assert slices == [(0, 1, 0, 4), (1, 2, 4, 7)]
    assert padded == [(0, 1, 0, 4), (1, 3, 4, 8)]


def test_requests_are_cut_at_points(package):
    slices, _ = create(package, [3, 1, 4], 8, 3, 3, 2)
    assert slices == [(0, 1, 0, 2), (0, 2, 2, 4), (2, 3, 4, 8)]
    slices, _ = create(package, [3, 1, 4], 8, 3, 3, [3, 7])
    assert slices == [(0, 1, 0, 3), (1, 3, 3, 7), (2, 3, 7, 8)]


def test_a_request_without_tokens_is_in_a_slice_only_between_two(package):
    slices, padded = create(package, [0, 2, 0, 2, 0], 4, 5, 2)
    assert slices == [(1, 2, 0, 2), (3, 4, 2, 4)]
    assert padded == [(1, 2, 0, 2), (3, 5, 2, 4)]
    slices, _ = create(package, [0, 2, 0, 2, 0], 4, 5, 2, 3)
    assert slices == [(1, 4, 0, 3), (3, 4, 3, 4)]


def test_without_ubatching_there_are_no_slices(package):
    given = np.array([4, 3], dtype=np.int32)
    assert package.maybe_create_ubatch_slices(False, given, 7, 2, 2) == (None, None)


@pytest.mark.parametrize("point", [0, 4, 9, [4], [], [1, 2]])
def test_points_that_leave_a_slice_empty_are_refused(package, point):
    with pytest.raises(package.MetadataError, match="split_point"):
        create(package, [3, 1], 4, 2, 2, point)


def test_padding_that_leaves_the_last_slice_without_a_token_is_refused(package):
    with pytest.raises(package.MetadataError, match="split_point"):
        create(package, [3], 8, 2, 2)
