"""Tests of each rank's share of a sequence (SPEC.md section 10)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: s = [10], N = 2, I = 4 gives [[6, 4]]")
def test_worked_example(package):
    lengths = torch.tensor([10], dtype=torch.int32)
    shares = package.get_dcp_local_seq_lens(lengths, 2, cp_kv_cache_interleave_size=4)
    assert shares.tolist() == [[6, 4]]
    assert shares.dtype == torch.int32


@pytest.mark.spec("E56: 0.11 drops the axis of ranks where there is one rank")
def test_one_rank_keeps_its_axis(package):
    assert package.get_dcp_local_seq_lens(torch.tensor([10, 3])).tolist() == [[10], [3]]


@pytest.mark.parametrize("rank", [1, torch.tensor([1], dtype=torch.int32)])
def test_one_rank_has_the_shape_of_the_lengths(package, rank):
    lengths = torch.tensor([10, 3, 0])
    assert package.get_dcp_local_seq_lens(lengths, 2, rank, 4).tolist() == [4, 0, 0]


def test_a_rank_beyond_the_ranks_is_refused(package):
    for rank in (2, torch.tensor([2], dtype=torch.int32)):
        with pytest.raises(package.MetadataError, match="dcp_rank"):
            package.get_dcp_local_seq_lens(torch.tensor([10]), 2, rank)
