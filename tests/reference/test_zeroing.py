"""Tests of zeroed blocks (SPEC.md section 18)."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.spec("Example: 3 blocks of two layers in turn, a layer's part of a block is 2 words")
def test_the_parts_of_a_block_are_zeroed_in_each_layer(package):
    storage = torch.ones(12, dtype=torch.int32)
    package.zero_blocks(storage, [0, 2], [[3, 2], [3, 1]], [[4, 1], [4, 1]], [False, False], 3, [1])
    assert storage.tolist() == [1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
