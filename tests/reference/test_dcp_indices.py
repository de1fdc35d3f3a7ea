"""Tests of a rank's lengths and indices under context parallelism (SPEC.md section 15)."""

from __future__ import annotations

import pytest
import torch


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.spec("Example: two ranks, turns of 2, positions [3, 8): rank 0 owns 4, 5")
@pytest.mark.parametrize(("rank", "share"), [(0, 2), (1, 3)])
def test_share_of_a_range(package, rank, share):
    shares = package.get_dcp_lens(ints(5), 2, rank, ints(3), 2)
    assert shares.tolist() == [share]
    assert shares.dtype == torch.int32


def test_share_of_a_range_that_ends_beyond_32_bits(package):
    last = 2**31 - 1
    assert package.get_dcp_lens(ints(last), 2, 1, ints(last)).tolist() == [2**30]


def test_shares_without_starts_are_those_of_the_whole_sequences(package):
    lens = torch.arange(40)
    for rank in range(3):
        shares = package.get_dcp_lens(lens, 3, rank, interleave_size=4)
        others = package.get_dcp_local_seq_lens(lens, 3, rank, 4)
        assert shares.tolist() == others.tolist()
        assert shares.dtype == torch.int64


@pytest.mark.spec("Example: two ranks, turns of 2, positions [3, 4, -1, 7]: rank 1 has [1, -1, -1")
def test_indices_of_a_rank(package):
    assert package.localize_dcp_indices(ints(3, 4, -1, 7), 2, 1, 2).tolist() == [1, -1, -1, 3]


def test_each_position_has_an_index_on_one_rank(package):
    positions = torch.arange(48).reshape(6, 8)
    indices = torch.stack([package.localize_dcp_indices(positions, 3, r, 4) for r in range(3)])
    assert indices.shape == (3, 6, 8)
    assert ((indices >= 0).sum(0) == 1).all()
    for rank in range(3):
        own = indices[rank][indices[rank] >= 0]
        assert own.tolist() == list(range(16))


@pytest.mark.parametrize("name", ["get_dcp_lens", "localize_dcp_indices"])
@pytest.mark.parametrize(
    ("size", "rank", "interleave", "field"),
    [(0, 0, 1, "dcp_size"), (2, 2, 1, "dcp_rank"), (2, 0, 0, "interleave_size")],
)
def test_numbers_out_of_range_are_refused(package, name, size, rank, interleave, field):
    with pytest.raises(package.MetadataError, match=field):
        getattr(package, name)(ints(5), size, rank, interleave_size=interleave)


def test_an_index_below_minus_one_is_refused(package):
    with pytest.raises(package.MetadataError, match=r"indices\[1\] is -2, expected a position"):
        package.localize_dcp_indices(ints(5, -2), 2, 0)
