"""`build_slot_mapping` by vLLM's list form and by its block table."""

from __future__ import annotations

import pytest
import torch

from attnproof import reference

RELEASES = ["0.10.2", "0.11.2"]


@pytest.fixture(params=RELEASES)
def slots(request, beside):
    return beside(request.param).build_slot_mapping


@pytest.fixture
def step():
    """Query tokens 2, 0 and 3 after 3, 0 and 6 computed ones; blocks of 4 tokens."""
    offsets = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    computed = torch.tensor([3, 0, 6], dtype=torch.int32)
    table = torch.tensor([[7, 9, 77], [99, 99, 99], [4, 5, 6]], dtype=torch.int32)
    return offsets, computed, table, 4


def test_slots_of_every_token(slots, step):
    made = slots(*step)
    assert made.dtype == torch.int64
    assert made.tolist() == [31, 36, 22, 23, 24]


def test_graph_padding_has_no_slot(slots, step):
    assert slots(*step, num_padded_tokens=7).tolist() == [31, 36, 22, 23, 24, -1, -1]


def test_masked_positions_have_no_slot(slots, step):
    first = torch.tensor([4, 0, 8], dtype=torch.int32)
    assert slots(*step, start_idx=first).tolist() == [-1, 36, -1, -1, 24]


def test_a_buffer_is_filled_to_its_end(slots, step):
    out = torch.full((8,), 12345)
    made = slots(*step, num_padded_tokens=6, out=out)
    assert out.tolist() == [31, 36, 22, 23, 24, -1, -1, -1]
    assert made.tolist() == [31, 36, 22, 23, 24, -1]
    assert made.data_ptr() == out.data_ptr()


def test_a_batch_without_requests(slots):
    nothing = torch.zeros(0, dtype=torch.int32)
    table = torch.zeros((0, 2), dtype=torch.int32)
    made = slots(torch.zeros(1, dtype=torch.int32), nothing, table, 4, num_padded_tokens=2)
    assert made.tolist() == [-1, -1]


def test_slots_equal_the_references(slots, step):
    for more in ({}, {"num_padded_tokens": 9}, {"start_idx": torch.tensor([0, 5, 7]).int()}):
        assert slots(*step, **more).tolist() == reference.build_slot_mapping(*step, **more).tolist()


def test_data_that_an_engine_holds_is_prepared_before_timing(slots, step):
    """A thunk can be called again, and does not read the given tensors any more."""
    thunk = slots.bind(*step)
    step[0].zero_(), step[1].zero_(), step[2].zero_()
    assert thunk().tolist() == thunk().tolist() == [31, 36, 22, 23, 24]
