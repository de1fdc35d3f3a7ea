"""Tests of the block tables of request slots (SPEC.md section 13)."""

from __future__ import annotations

import pytest
import torch


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def make_tables(package):
    """Function that makes the block tables of the example, with these options."""

    def make(**options):
        tables = package.BlockTables([4, 2], 3, 8, [3, 3], torch.device("cpu"), **options)
        tables.append_block_ids(1, ([7, 3], [5, 9, 2]), True)
        tables.append_block_ids(0, ([6], [8]), True)
        tables.apply_staged_writes()
        return tables

    return make


def slots_of(tables, *positions, slot=1):
    starts = int32(0, len(positions))
    mapped = torch.tensor(positions, dtype=torch.int64)
    return tables.compute_slot_mappings(int32(slot), starts, mapped, len(positions)).tolist()


@pytest.mark.spec("Example, two groups with B = 4 and 2, slot 1 with blocks [7, 3] and [5, 9, 2]")
def test_worked_example(make_tables):
    tables = make_tables()
    first, second = tables.gather_block_tables(int32(1, -1), 3)
    assert first.tolist() == [[7, 3, 0], [0, 0, 0], [0, 0, 0]]
    assert second.tolist() == [[5, 9, 2], [0, 0, 0], [0, 0, 0]]
    assert slots_of(tables, 3, 4, 5) == [[31, 12, 13], [19, 4, 5]]
    ranked = make_tables(cp_size=2, cp_rank=1, cp_interleave=2)
    assert slots_of(ranked, 3, 4, 5) == [[29, -1, -1], [11, -1, -1]]


def test_a_reused_row_keeps_no_block_of_the_request_before(make_tables):
    tables = make_tables()
    tables.gather_block_tables(int32(1), 1)
    first, second = tables.gather_block_tables(int32(0), 1)
    assert (first.tolist(), second.tolist()) == ([[6, 0, 0]], [[8, 0, 0]])


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_row_that_is_too_long_changes_no_group(make_tables, overwrite):
    tables = make_tables()
    with pytest.raises(RuntimeError, match=r"slot 1 \d blocks in group 1, expected at most 3"):
        tables.append_block_ids(1, ([1], [1, 2, 3, 4]), overwrite)
    tables.apply_staged_writes()
    first, second = tables.gather_block_tables(int32(1), 1)
    assert (first.tolist(), second.tolist()) == ([[7, 3, 0]], [[5, 9, 2]])


def test_positions_beyond_the_blocks_have_no_slot(make_tables):
    assert slots_of(make_tables(), 7, 8, 5) == [[15, -1, 13], [-1, -1, 5]]
    assert slots_of(make_tables(), 4, slot=0) == [[-1], [-1]]


def test_writes_of_one_step_take_effect_in_order(make_tables):
    tables = make_tables()
    tables.append_block_ids(1, ([4], []), False)
    tables.append_block_ids(1, ([], [1]), True)
    tables.append_block_ids(1, ([2, 8], [3]), False)
    before = tables.gather_block_tables(int32(1), 1)[0].tolist()
    tables.apply_staged_writes()
    first, second = tables.gather_block_tables(int32(1), 1)
    assert before == [[7, 3, 0]]
    assert (first.tolist(), second.tolist()) == ([[2, 8, 0]], [[1, 3, 0]])


def test_the_whole_slot_buffer_is_padded(make_tables):
    tables = make_tables(slot_mapping_enabled=[True, False])
    slots_of(tables, 0, 1, 2, 3, 4, 5)
    assert slots_of(tables, 1) == [[29], [-1]]
    assert tables.slot_mappings.tolist() == [[29, *[-1] * 7], [-1] * 8]
    assert tables.get_dummy_slot_mappings(2).tolist() == [[-1, -1]] * 2
    assert not tables.slot_mappings[0].add(1).any()
    assert [table.tolist() for table in tables.get_dummy_block_tables(2)] == [[[0] * 3] * 2] * 2


def test_products_have_64_bits(package):
    tables = package.BlockTables([256], 1, 4, [1], torch.device("cpu"))
    tables.append_block_ids(0, ([2**31 - 1],), True)
    tables.apply_staged_writes()
    assert slots_of(tables, 255, slot=0) == [[2**39 - 1]]


def test_buffers_of_the_caller(make_tables):
    tables = make_tables()
    out = tuple(torch.full((2, 3), 9, dtype=torch.int32) for _ in range(2))
    gathered = tables.gather_block_tables(torch.tensor([0]), 1, out)
    assert gathered[0].data_ptr() == out[0].data_ptr()
    assert [table.tolist() for table in out] == [[[6, 0, 0], [9] * 3], [[8, 0, 0], [9] * 3]]
    slots = torch.zeros(2, 3, dtype=torch.int64)
    position = torch.tensor([2])
    tables.compute_slot_mappings(int32(0), int32(0, 1), position, 2, slots)
    assert slots.tolist() == [[26, -1, -1], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cp_size": 2, "cp_rank": 2}, "cp_rank"),
        ({"cp_size": 2, "cp_interleave": 4}, "cp_interleave"),
        ({"dcp_sharded": [True]}, "dcp_sharded"),
        ({"slot_mapping_enabled": []}, "slot_mapping_enabled"),
    ],
)
def test_groups_and_ranks_that_do_not_exist_are_refused(package, make_tables, options, field):
    with pytest.raises(package.MetadataError, match=f"BlockTables: {field}"):
        make_tables(**options)


def test_slots_outside_are_refused(package, make_tables):
    tables = make_tables()
    for slot in (3, -2):
        with pytest.raises(package.MetadataError, match=f"idx_mapping is {slot}, expected -1 or"):
            tables.gather_block_tables(int32(slot), 1)
    with pytest.raises(package.MetadataError, match="query_start_loc"):
        tables.compute_slot_mappings(int32(1), int32(0, 3), torch.tensor([0, 1]), 3)
