"""Tests of compute_slot_mapping and its loops, build_slot_mapping, is_block_tables_empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof import optimized
from attnproof.reference import MetadataError


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    buffer = torch.full([3 * n + 1 for n in tensor.shape], -5, dtype=tensor.dtype)
    view = buffer[tuple(slice(0, 3 * n, 3) for n in tensor.shape)]
    return view.copy_(tensor)


@pytest.mark.parametrize("place", [torch.clone, _spread])
@pytest.mark.parametrize("num_padded_tokens", [None, 3, 5, 7])
def test_build_into_a_buffer_clears_its_tail(place, num_padded_tokens):
    offsets = torch.tensor([0, 2, 2, 3], dtype=torch.int32)
    computed = torch.tensor([3, 0, 0], dtype=torch.int32)
    table = torch.tensor([[5, 6], [7, 8], [9, 1]], dtype=torch.int32)
    out = place(torch.zeros(7, dtype=torch.int64))
    slots = optimized.build_slot_mapping(
        offsets, computed, table, 4, out=out, num_padded_tokens=num_padded_tokens
    )
    assert slots.tolist() == [23, 24, 36, -1, -1, -1, -1][:num_padded_tokens]
    assert out.tolist() == [23, 24, 36, -1, -1, -1, -1]
    assert slots.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("name", ["query_start_loc", "num_computed_tokens", "start_idx"])
@pytest.mark.parametrize("shift", [-2, 0, 1, 7])
def test_build_refuses_a_buffer_over_an_input(agree, name, shift):
    memory = torch.zeros(20, dtype=torch.int64)
    given = {
        "query_start_loc": torch.tensor([0, 1, 3]),
        "num_computed_tokens": torch.tensor([0, 4]),
        "block_table": torch.tensor([[1, 2], [3, 4]]),
        "block_size": 4,
        "start_idx": torch.tensor([0, 0]),
        "out": memory[4:12],
    }
    length = len(given[name])
    given[name] = memory[4 + shift : 4 + shift + length].copy_(given[name])
    error = agree("build_slot_mapping", **given)
    if shift == -2 and length == 2:
        assert isinstance(error, torch.Tensor)  # this input ends where the buffer begins
    else:
        assert isinstance(error, MetadataError)
        assert str(error).endswith(f"out is in the memory of {name}, expected memory apart")


def test_build_refuses_a_buffer_over_a_strided_table(agree):
    memory = torch.zeros((4, 4), dtype=torch.int64)
    starts, lengths = torch.tensor([0, 1, 2]), torch.tensor([0, 4])
    table, out = memory[:2, ::2], memory.view(-1)[5:9]
    error = agree("build_slot_mapping", starts, lengths, table, 4, out=out)
    assert error.field == "out"
    out = memory.view(-1)[7:15:2]  # starts after the table's last element
    assert torch.is_tensor(agree("build_slot_mapping", starts, lengths, table, 4, out=out))


def test_build_does_not_write_the_gaps_of_a_strided_buffer():
    buffer = torch.full((20,), 77, dtype=torch.int64)
    one, zero = torch.tensor([0, 2]), torch.tensor([0])
    optimized.build_slot_mapping(one, zero, torch.tensor([[4]]), 8, out=buffer[:18:3])
    assert buffer[:18:3].tolist() == [32, 33, -1, -1, -1, -1]
    assert set(buffer.tolist()) == {32, 33, -1, 77}
    assert buffer.tolist().count(77) == 14


def test_build_slots_beyond_int32(agree):
    offsets = torch.tensor([0, 3], dtype=torch.int32)
    table = torch.tensor([[2**31 - 1]], dtype=torch.int32)
    slots = agree("build_slot_mapping", offsets, torch.tensor([13], dtype=torch.int32), table, 16)
    assert slots.tolist() == [(2**31 - 1) * 16 + 13 + i for i in range(3)]


def test_build_more_tokens_than_one_tile(agree):
    lens = torch.tensor([0, 700, 1, 0, 0, 1500, 0])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lens.cumsum(0)])
    table = torch.randperm(7 * 90).reshape(7, 90)
    agree("build_slot_mapping", offsets, lens * 0 + 5, table, 16, num_padded_tokens=2300)


def test_build_without_requests_or_columns(agree):
    zero, none = torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    agree("build_slot_mapping", zero, none, torch.zeros((0, 3), dtype=torch.int32), 4)
    agree("build_slot_mapping", zero, none, none.reshape(0, 0), 4, num_padded_tokens=3)
    two = torch.tensor([0, 2], dtype=torch.int32)
    agree("build_slot_mapping", two, zero, torch.zeros((1, 0), dtype=torch.int32), 4)


@pytest.mark.parametrize(
    "change",
    [
        {"query_start_loc": torch.tensor([1, 2, 3])},
        {"query_start_loc": torch.tensor([0, 2, 1])},
        {"query_start_loc": torch.tensor([0, 1])},
        {"query_start_loc": torch.tensor([], dtype=torch.int64)},
        {"query_start_loc": torch.tensor([0.0, 1.0, 3.0])},
        {"query_start_loc": [0, 1, 3]},
        {"query_start_loc": None},
        {"num_computed_tokens": torch.tensor([0, -1])},
        {"num_computed_tokens": torch.tensor([[0], [1]])},
        {"num_computed_tokens": None},
        {"block_table": None},
        {"block_table": torch.tensor([1, 2])},
        {"block_table": torch.tensor([[1], [2], [3]])},
        {"block_size": 0},
        {"block_size": 4.0},
        {"num_padded_tokens": 2},
        {"num_padded_tokens": -1},
        {"num_padded_tokens": 9, "out": torch.zeros(8, dtype=torch.int64)},
        {"num_padded_tokens": 2, "out": torch.zeros(8, dtype=torch.int64)},
        {"out": torch.zeros(2, dtype=torch.int64)},
        {"out": torch.zeros(8, dtype=torch.int32)},
        {"out": torch.zeros((8, 1), dtype=torch.int64)},
        {"start_idx": torch.tensor([1])},
        {"start_idx": torch.tensor([1, 2], device="meta")},
    ],
)
def test_build_rejects(agree, change):
    given = {
        "query_start_loc": torch.tensor([0, 1, 3]),
        "num_computed_tokens": torch.tensor([0, 4]),
        "block_table": torch.tensor([[1, 2], [3, 4]]),
        "block_size": 4,
    } | change
    if isinstance(given.get("start_idx"), torch.Tensor) and given["start_idx"].is_meta:
        with pytest.raises(MetadataError, match="start_idx is on meta"):
            optimized.build_slot_mapping(**given)
        return
    error = agree("build_slot_mapping", **given)
    assert isinstance(error, (MetadataError, TypeError)), error


def test_compute_worked_example(agree):
    slots: list[int] = []
    optimized.compute_slot_mapping(False, slots, 7, 10, 0, 2, 4, {7: [0, 1, 0]})
    assert slots == [-1, -1, 2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.parametrize("name", ["_compute_slot_mapping_python", "_compute_slot_mapping_numpy"])
@pytest.mark.parametrize(
    "bounds", [(0, 0), (0, 1), (3, 9), (4, 8), (0, 12), (9, 3), (0, 13), (-1, 4)]
)
def test_inner_loops(agree, name, bounds):
    from attnproof import reference

    outcomes = []
    for package in (reference, optimized):
        slots = [1]
        try:
            getattr(package, name)(slots, [3, 0, 9], *bounds, 4)
        except MetadataError as error:
            slots.append(str(error))
        outcomes.append(slots)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "arguments",
    [
        (False, 0, 13, 0, 0, 4, {0: [1, 2, 3]}),
        (False, 0, 4, 0, 0, 4, None),
        (False, 0, 4, 0, 0, 4, {1: [1]}),
        (False, 0, -1, 0, 0, 4, {0: [1]}),
        (False, 0, 4, -1, 0, 4, {0: [1]}),
        (False, 0, 4, 0, 0, 0, {0: [1]}),
        (True, 0, 4.0, 0, 0, 4, {0: [1]}),
        (1, 0, 4, 0, 0, 4, {0: [1]}),
        (False, 0, 4, 0, 0, 4, {0: [1.0]}),
        (False, 0, 4, 0, 0, 4, {0: [-1]}),
        (False, 0, 4, 0, 0, 4, {0: np.array([1.0])}),
        (False, 0, 40, 0, 0, 4, {0: [*range(9), -3]}),
        (False, 0, 40, 0, 0, 4, {0: [*range(9), None]}),
        (False, 0, 40, 0, 0, 4, {0: [*range(9), 2.5]}),
    ],
)
def test_compute_errors_do_not_change_the_list(agree, arguments):
    slots = [5]
    error = agree("compute_slot_mapping", arguments[0], slots, *arguments[1:])
    assert isinstance(error, (MetadataError, TypeError))
    assert slots == [5]


@pytest.mark.parametrize(
    "blocks", [[None, -4, *range(9)], [True, False] * 6, np.arange(12, dtype=np.uint64)]
)
@pytest.mark.parametrize("end", [12, 44])
def test_compute_reads_only_the_blocks_of_the_positions(blocks, end):
    from attnproof import reference

    results = []
    for package in (reference, optimized):
        slots = []
        package.compute_slot_mapping(False, slots, 0, end, 8, 0, 4, {0: blocks})
        results.append(slots)
    assert results[0] == results[1]
    assert len(results[0]) == end - 8


@pytest.mark.parametrize("window", [None, 1, 5, 0, 2.0])
@pytest.mark.parametrize("is_prompt", [True, False, 1, None])
@pytest.mark.parametrize("query_len", [0, 3, 8, -1])
def test_start_idx(agree, window, is_prompt, query_len):
    agree("compute_slot_mapping_start_idx", is_prompt, query_len, 2, window)


@pytest.mark.parametrize("tables", [None, {}, {1: None}, {1: None, 2: [3]}, {1: []}])
def test_is_block_tables_empty(agree, tables):
    agree("is_block_tables_empty", tables)
