"""Tests of slots that published versions get wrong: large ids, narrow rows, long sequences."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def slots(package, query_lens, computed, rows, block_size, **more):
    offsets = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    table = torch.tensor(rows, dtype=torch.int32)
    computed = torch.tensor(computed, dtype=torch.int32)
    return package.build_slot_mapping(offsets, computed, table, block_size, **more).tolist()


@pytest.mark.spec("E45: the engine's `BlockTable.compute_slot_mapping` (0.10, 0.11) multiplies")
def test_slots_beyond_int32(package):
    assert slots(package, [3], [15], [[1, 2**27 + 1]], 16) == [31, 2**31 + 16, 2**31 + 17]


@pytest.mark.spec("E46: where a position lies beyond its block-table row it raises IndexError")
def test_a_position_beyond_its_row_has_no_slot(package):
    assert slots(package, [3, 2], [3, 4], [[5], [9]], 4) == [23, -1, -1, -1, -1]
    assert slots(package, [2, 1], [7, 0], [[5, 6], [9, 8]], 4) == [27, -1, 36]


@pytest.mark.spec("E47: from 256 slots of a sequence on the V0 list holds numpy integers")
@pytest.mark.parametrize("length", [255, 256, 1000])
def test_slots_of_a_long_sequence_are_python_integers(package, length):
    made: list[int] = []
    blocks = [3, *range(10, 10 + length // 4)]
    package.compute_slot_mapping(False, made, 0, length, 0, 0, 4, {0: blocks})
    assert made == [12, 13, 14, 15, *range(40, 36 + length)]
    assert {type(slot) for slot in made} == {int}


@pytest.mark.spec("E55: of block ids that are numpy's int32 the V0 list and the V0 builder compute")
@pytest.mark.parametrize("kind", [int, np.int32, np.int64])
def test_slots_of_numpy_block_ids_do_not_overflow(package, kind):
    made: list[int] = []
    package.compute_slot_mapping(False, made, 0, 2, 0, 0, 2, {0: [kind(2**31 - 1)]})
    assert made == [2**32 - 2, 2**32 - 1]
    assert {type(slot) for slot in made} == {int}
