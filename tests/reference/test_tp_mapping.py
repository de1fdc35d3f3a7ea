"""Tests of the ranks that hold another rank's cache (SPEC.md section 18)."""

from __future__ import annotations

import pytest


@pytest.mark.spec("Example: rank 1 of 2, 8 remote ranks, 4 heads, states: sources 4 and 6, states")
def test_a_head_is_read_from_the_first_rank_that_has_it(package):
    mapping = package.compute_tp_mapping(1, 2, 8, 4, False, True)
    assert mapping == ([4, 6], [4, 5, 6, 7], {4: 0, 5: 0, 6: 1, 7: 1}, 0)


def test_an_offset_counts_pieces_of_a_local_rank(package):
    offsets = [package.compute_tp_mapping(rank, 8, 2, 4, False, False)[3] for rank in range(8)]
    assert offsets == [0, 0, 1, 1, 0, 0, 1, 1]
