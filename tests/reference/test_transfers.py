"""Tests of the block ids of a transfer (SPEC.md section 18)."""

from __future__ import annotations

import pytest


@pytest.mark.spec("Example: ratios 2, attention lists [3] and [5, 7]: decode [6, 7], prefill")
def test_the_last_blocks_are_paired(package):
    assert package.pair_block_ids([[3]], [[5, 7]], 2, 2, [False]) == ([[6, 7]], [[14, 15]])


def test_two_ratios_pair_the_first_kernel_blocks(package):
    decode, prefill = package.pair_block_ids([[4, 9], [8]], [[0], [2]], 2, 3, [False, True])
    assert (decode, prefill) == ([[8, 9, 18], [8]], [[0, 1, 2], [2]])


@pytest.mark.spec("Example: local [1, 2], four remote blocks each, remote [5, 6, 7, 8, 9]: local")
def test_local_blocks_of_the_remote_size(package):
    local, remote = package.map_block_ids_for_block_size_ratio(
        [[1, 2]], [[5, 6, 7, 8, 9]], 4, [False]
    )
    assert (local, remote) == ([[4, 5, 6, 7, 8]], [[5, 6, 7, 8, 9]])
