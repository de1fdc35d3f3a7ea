"""Tests of a drafter's inputs, request by request (SPEC.md section 14)."""

from __future__ import annotations

import pytest
import torch


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.spec("Example: B = 4, max_model_len 10, positions [5, 9], seq_lens [6, 10]")
def test_worked_example_of_a_step(package):
    positions, lengths = torch.tensor([5, 9]), int32([6, 10])
    slots = torch.full((5,), 77)
    package.eagle_step_update_slot_mapping_and_metadata(
        positions, int32([[3, 7, 0], [1, 2, 5]]), lengths, 4, 10, positions, slots, 3
    )
    assert positions.tolist() == [6, 0]
    assert lengths.tolist() == [7, 1]
    assert slots.tolist() == [30, -1, -1, 77, 77]


def test_a_step_beyond_the_table_has_no_slot_and_highest_ids_do_not_wrap(package):
    positions, lengths, slots = torch.tensor([1, 2]), int32([2, 3]), torch.zeros(2).long()
    package.eagle_step_update_slot_mapping_and_metadata(
        positions, int32([[5], [2**31 - 1]]), lengths, 3, 100, torch.zeros(2).long(), slots
    )
    assert slots.tolist() == [5 * 3 + 2, -1]
    package.eagle_step_update_slot_mapping_and_metadata(
        torch.tensor([0, 0]), int32([[2**31 - 1]] * 2), lengths, 3, 100, positions, slots
    )
    assert slots.tolist() == [3 * (2**31 - 1) + 1] * 2


def test_a_step_writes_no_positions_into_other_positions(package):
    buffer, lengths = torch.arange(4), int32([1, 2])
    with pytest.raises(package.MetadataError, match="out_clamped_positions is in the memory of"):
        package.eagle_step_update_slot_mapping_and_metadata(
            buffer[:2], int32([[1], [2]]), lengths, 4, 9, buffer[1:3], torch.zeros(2).long()
        )
    assert lengths.tolist() == [1, 2]


@pytest.mark.spec("Example: sampled [[5, 7, -1], [-1, -1, -1], [4, 9, 2]], of which the last row")
def test_worked_example_of_next_tokens(package):
    sampled = int32([[5, 7, -1], [-1, -1, -1], [4, 9, 2]])
    discarded = torch.tensor([False, False, True])
    tokens, counts = package.prepare_next_token_ids_padded(sampled, discarded, int32([1, 2, 3]), 8)
    assert tokens.tolist() == [7, 2, 3]
    assert counts.tolist() == [2, 0, 0]
    assert tokens.dtype == counts.dtype == torch.int32


def test_the_last_valid_token_may_stand_behind_an_invalid_one(package):
    sampled, kept = int32([[-1, 4, 8, 6, -1]]), torch.tensor([False])
    tokens, counts = package.prepare_next_token_ids_padded(sampled, kept, int32([1]), 8)
    assert (tokens.tolist(), counts.tolist()) == ([6], [2])


@pytest.mark.spec(
    "Example: B = 4, query_start_loc [0,2,3], tables [[3, 7], [1, 2]], N = 1, positions"
)
def test_worked_example_of_new_slots(package, make_metadata):
    parent = make_metadata([2, 1], [7, 1], [[3, 7], [1, 2]])
    rejected = torch.tensor([False, False, False, True, False])
    positions = torch.tensor([5, 6, 7, 0, 1])
    slots = package.compute_new_slot_mapping(parent, positions, rejected, 4, 1, 7)
    assert slots.tolist() == [29, 30, -1, -1, 5]


def test_a_position_beyond_its_row_takes_no_block_of_the_next_row(package, make_metadata):
    parent = make_metadata([1, 1], [4, 4], [[3], [2**31 - 1]])
    kept = torch.zeros(2, dtype=torch.bool)
    slots = package.compute_new_slot_mapping(parent, torch.tensor([4, 3]), kept, 4, 0, 99)
    assert slots.tolist() == [-1, 4 * (2**31 - 1) + 3]


@pytest.mark.spec(
    "Example: tokens [10, 11, 12, 20], positions [5, 6, 7, 0], query_start_loc [0,3,4]"
)
@pytest.mark.parametrize(
    ("shift", "ids", "positions", "new"),
    [
        (True, [11, 90, 77, 0, 91, 77], [5, 6, 7, 0, 0, 1], [1, 2, 4, 5]),
        (False, [10, 11, 90, 77, 0, 20, 91, 77], [5, 6, 7, 8, 0, 0, 1, 2], [2, 3, 6, 7]),
    ],
)
def test_worked_example_of_expanded_inputs(package, shift, ids, positions, new):
    outputs = [torch.full((9,), -7), torch.full((9,), -7)]
    masks = [torch.ones(9, dtype=torch.bool), torch.ones(9, dtype=torch.bool)]
    indices, hidden = int32([-7] * 4), int32([-7] * 4)
    package.copy_and_expand_eagle_inputs(
        int32([10, 11, 12, 20]),
        torch.tensor([5, 6, 7, 0]),
        int32([90, 91]),
        *outputs,
        *masks,
        indices,
        hidden,
        int32([0, 3, 4]),
        int32([1, 3]),
        0,
        77,
        4,
        2,
        shift,
    )
    assert [out.tolist() for out in outputs] == [
        values + [-7] * (9 - len(values)) for values in (ids, positions)
    ]
    assert indices.tolist() == new
    assert hidden.tolist() == ([0, 1, 2, 4] if shift else [-7] * 4)
    rejected = [token == 0 for token in ids]
    assert masks[0][: len(ids)].tolist() == rejected
    assert masks[1][: len(ids)].tolist() == [token == 77 for token in ids]
    assert masks[0][len(ids) :].all()


def test_a_model_without_positions_and_short_buffers_are_refused(package):
    positions, lengths, table = torch.tensor([5, 9]), int32([6, 10]), int32([[3], [1]])
    step = package.eagle_step_update_slot_mapping_and_metadata
    slots = torch.zeros(2).long()
    with pytest.raises(package.MetadataError, match="max_model_len is 0, expected at least 1"):
        step(positions, table, lengths, 4, 0, positions, slots)
    with pytest.raises(package.MetadataError, match="seq_lens is of length 1, expected length 2"):
        step(positions, table, lengths[:1], 4, 9, positions, slots)
    with pytest.raises(package.MetadataError, match="out_slot_mapping is of length 2, expected"):
        step(positions, table, lengths, 4, 9, positions, slots, 3)
    with pytest.raises(package.MetadataError, match="input_batch_size is 1, expected at least 2"):
        step(positions, table, lengths, 4, 9, positions, slots, 1)
    assert (positions.tolist(), lengths.tolist()) == ([5, 9], [6, 10])


def test_slots_of_another_number_of_tokens_are_refused(package, make_metadata):
    parent, kept = make_metadata([2], [7]), torch.zeros(2, dtype=torch.bool)
    with pytest.raises(package.MetadataError, match="new_positions is of length 2, expected"):
        package.compute_new_slot_mapping(parent, torch.arange(2), kept, 4, 1, 9)


def test_positions_are_read_before_they_are_written_in_place(package):
    positions, lengths, slots = torch.tensor([1, 4]), int32([2, -5]), torch.zeros(2).long()
    with pytest.raises(package.MetadataError, match=r"seq_lens\[1\] is -5, expected at least 0"):
        package.eagle_step_update_slot_mapping_and_metadata(
            positions, int32([[5], [6]]), lengths, 8, 9, positions, slots
        )
    assert positions.tolist() == [1, 4]
