"""Tests of PersistentBatch of both packages (SPEC.md section 7)."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture
def batch(package):
    """Batch of five rows with three requests of 2, 1 and 3 blocks of 4 tokens."""
    made = package.PersistentBatch(5, 20, 3, 4)
    made.add_request("a", [7, 3], 5)
    made.add_request("b", [1])
    made.add_request("c", [2, 9, 4], 8)
    return made


def test_is_an_input_batch(package, batch):
    assert isinstance(batch, package.InputBatch)


def test_build_gives_slots_by_position_and_block(batch):
    metadata = batch.build({"a": 2, "b": 3, "c": 1})
    assert metadata.query_start_loc.tolist() == [0, 2, 5, 6]
    assert metadata.query_start_loc_cpu.tolist() == [0, 2, 5, 6]
    assert metadata.seq_lens.tolist() == metadata.seq_lens_cpu.tolist() == [7, 3, 9]
    assert metadata.num_computed_tokens_cpu.tolist() == [5, 0, 8]
    assert (metadata.num_reqs, metadata.num_actual_tokens) == (3, 6)
    assert (metadata.max_query_len, metadata.max_seq_len) == (3, 9)
    assert metadata.slot_mapping.tolist() == [13, 14, 4, 5, 6, 16]
    assert metadata.block_table_tensor[2].tolist() == [2, 9, 4]
    assert {tensor.dtype for tensor in (metadata.query_start_loc, metadata.seq_lens)} == {
        torch.int32
    }


def test_padded_rows_are_empty_and_padded_tokens_have_no_slot(batch):
    batch.build({"a": 3, "b": 4, "c": 4})
    batch.remove_request("c")
    batch.condense()
    metadata = batch.build({"a": 1, "b": 1}, 4, 6)
    assert metadata.query_start_loc.tolist() == [0, 1, 2, 2, 2]
    assert metadata.seq_lens.tolist() == [6, 1, 0, 0]
    assert metadata.num_computed_tokens_cpu.tolist() == [5, 0, 0, 0]
    assert (metadata.num_reqs, metadata.num_actual_tokens) == (4, 6)
    assert metadata.slot_mapping.tolist() == [13, 4, -1, -1, -1, -1]
    assert batch.slot_mapping.tolist() == [13, 4] + [-1] * 18


def test_slots_are_padding_before_the_first_build(batch):
    assert batch.slot_mapping.tolist() == [-1] * 20


def test_buffers_keep_their_addresses(batch):
    first = batch.build({"a": 3, "b": 4, "c": 4})
    second = batch.build({"a": 1, "b": 0, "c": 1}, 5, 9)
    for name in ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr(), name
    assert second.seq_lens.data_ptr() != second.seq_lens_cpu.data_ptr()


def test_a_built_batch_does_not_follow_the_rows(batch):
    metadata = batch.build({"a": 1, "b": 1, "c": 1})
    batch.swap_states(0, 2)
    batch.advance({"a": 1, "b": 1, "c": 1})
    batch.remove_request("b")
    assert metadata.seq_lens.tolist() == [6, 1, 9]
    assert metadata.block_table_tensor[0, :2].tolist() == [7, 3]


def test_rows_are_reused_from_the_lowest_hole(batch):
    assert batch.remove_request("a") == 0
    assert batch.remove_request("b") == 1
    assert batch.req_ids == [None, None, "c"]
    assert batch.num_reqs == 1
    assert batch.add_request("d", [5], 4) == 0
    assert batch.num_blocks[0] == 1
    batch.condense()
    assert batch.req_ids == ["d", "c"]
    assert batch.build({"d": 0, "c": 1}).slot_mapping.tolist() == [16]


def test_condense_moves_the_last_request_into_the_first_hole(batch):
    batch.add_request("d", [6], 1)
    batch.remove_request("a")
    batch.condense()
    assert batch.req_ids == ["d", "b", "c"]
    assert batch.block_table[0, 0] == 6
    assert batch.num_computed_tokens[:3].tolist() == [1, 0, 8]


def test_condense_drops_holes_at_the_end_first(batch):
    batch.remove_request("b")
    batch.remove_request("c")
    batch.condense()
    assert batch.req_ids == ["a"]
    batch.remove_request("a")
    batch.condense()
    assert batch.req_ids == []
    assert batch.build({}).query_start_loc.tolist() == [0]


def test_swap_moves_all_state(batch):
    batch.swap_states(0, 2)
    assert batch.req_ids == ["c", "b", "a"]
    assert batch.num_blocks[:3].tolist() == [3, 1, 2]
    assert batch.num_computed_tokens[:3].tolist() == [8, 0, 5]
    assert batch.block_table[0].tolist() == [2, 9, 4]
    assert batch.block_table[2, :2].tolist() == [7, 3]
    batch.swap_states(1, 1)
    assert batch.block_table[1, 0] == 1


def test_appended_blocks_follow_the_blocks_of_the_request(batch):
    batch.remove_request("c")
    batch.add_request("d", [8])
    batch.append_blocks("d", [0, 6])
    assert batch.block_table[2].tolist() == [8, 0, 6]
    metadata = batch.build({"a": 0, "b": 0, "d": 9})
    assert metadata.slot_mapping.tolist() == [32, 33, 34, 35, 0, 1, 2, 3, 24]


def test_advance_counts_tokens_as_computed(batch):
    batch.remove_request("b")
    batch.advance({"a": 3, "c": 0})
    assert batch.num_computed_tokens[0] == 8
    with pytest.raises(ValueError, match=r"num_blocks\[0\] is 2, expected at least 3"):
        batch.advance({"a": 1, "c": 1})
    assert batch.num_computed_tokens[2] == 8


@pytest.mark.spec("8 computed tokens less 3 rejected ones are 5")
def test_rejected_drafts_are_not_computed(batch):
    batch.advance({"a": 3, "b": 0, "c": 0})
    assert batch.num_computed_tokens[0] == 8
    batch.reject({"a": 3})
    assert batch.num_computed_tokens[0] == 5
    for rejected, error in (({"a": 6}, "at most the 5"), ({"x": 1}, "only ids"), ({"a": -1}, "0")):
        with pytest.raises(ValueError, match=error):
            batch.reject(rejected)
    assert batch.num_computed_tokens[0] == 5


def test_dummy_batch_spreads_tokens_and_has_no_slots(batch):
    batch.build({"a": 1, "b": 1, "c": 1})
    metadata = batch.build_dummy(4, 10)
    assert metadata.query_start_loc.tolist() == [0, 3, 6, 8, 10]
    assert metadata.seq_lens.tolist() == [3, 3, 2, 2]
    assert metadata.num_computed_tokens_cpu.tolist() == [0] * 4
    assert (metadata.max_query_len, metadata.max_seq_len) == (3, 3)
    assert not metadata.block_table_tensor.any()
    assert batch.slot_mapping.tolist() == [-1] * 20
    assert batch.req_ids == ["a", "b", "c"]
    assert batch.block_table[0, :2].tolist() == [7, 3]
    assert batch.build_dummy(0, 0).num_reqs == 0


def test_block_ids_of_numpys_types(package):
    made = package.PersistentBatch(1, 4, 2, 2)
    made.add_request("a", [np.int32(3)], 1)
    made.append_blocks("a", (np.int64(5),))
    assert made.build({"a": 2}).slot_mapping.tolist() == [7, 10]


def test_slots_beyond_int32(package):
    made = package.PersistentBatch(1, 4, 1, 16)
    made.add_request("a", [2**31 - 1], 14)
    assert made.build({"a": 2}).slot_mapping.tolist() == [2**35 - 2, 2**35 - 1]


def test_reorder_moves_the_state(package, batch):
    scheduled = {"a": 3, "b": 4, "c": 1}
    schedule = type("Schedule", (), {"num_scheduled_tokens": scheduled})
    assert package.reorder_batch_to_split_decodes_and_prefills(batch, schedule)
    assert batch.req_ids == ["c", "b", "a"]
    assert package.split_decodes_and_prefills(batch.build(scheduled)) == (1, 2, 1, 7)


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("add_request", ("a", []), "req_id is 'a', expected an id that has no row yet"),
        ("add_request", (None, []), "req_id is None"),
        ("add_request", ("d", [1] * 4), "block_ids is 4 blocks, expected at most 3"),
        ("add_request", ("d", [1, -1]), r"block_ids\[1\] is -1"),
        ("add_request", ("d", [2**31]), "an id below 2\\*\\*31"),
        ("add_request", ("d", [1], 5), "num_computed_tokens is 5, expected at most the 4"),
        ("append_blocks", ("a", [1, 2]), "block_ids is 2 blocks, expected at most 1"),
        ("append_blocks", ("d", []), "req_id is 'd'"),
        ("remove_request", ("d",), "req_id is 'd'"),
        ("swap_states", (0, 3), "j is 3, expected below 3"),
        ("swap_states", (-1, 0), "i is -1"),
        ("build", ({"a": 1, "b": 1},), "missing, expected an entry for request 'c'"),
        ("build", ({"a": 1, "b": 1, "c": 1, "d": 1},), "set for 'd'"),
        ("build", ({"a": 1, "b": -1, "c": 1},), "num_scheduled_tokens is -1"),
        ("build", ({"a": 4, "b": 1, "c": 1},), r"num_blocks\[0\] is 2, expected at least 3"),
        ("build", ({"a": 1, "b": 1, "c": 1}, 2), "num_padded_reqs is 2, expected at least 3"),
        ("build", ({"a": 1, "b": 1, "c": 1}, 6), "num_padded_reqs is 6, expected at most 5"),
        ("build", ({"a": 1, "b": 1, "c": 1}, 3, 2), "num_padded_tokens is 2"),
        ("build", ({"a": 1, "b": 1, "c": 1}, None, 21), "num_padded_tokens is 21"),
        ("build", ({"a": 2**63 - 1, "b": 1, "c": 1},), r"num_blocks\[0\] is 2"),
        ("advance", ({"a": 2**63 - 1, "b": 1, "c": 1},), r"num_blocks\[0\] is 2"),
        ("build_dummy", (6, 6), "num_reqs is 6, expected at most 5"),
        ("build_dummy", (1, 13), "num_tokens is 13, expected at most 12"),
        ("advance", ({"a": 1},), "missing, expected an entry for request 'b'"),
    ],
)
def test_malformed_input_changes_nothing(package, batch, method, arguments, message):
    batch.build({"a": 1, "b": 1, "c": 1})
    before = _state(batch)
    with pytest.raises(package.MetadataError, match=message) as caught:
        getattr(batch, method)(*arguments)
    assert caught.value.operation == f"PersistentBatch.{method}"
    assert _state(batch) == before


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("add_request", ([], [])),
        ("add_request", ("d", "12")),
        ("add_request", ("d", [1.0])),
        ("add_request", ("d", [1], 1.0)),
        ("swap_states", (0, "b")),
        ("build", ([1],)),
        ("build", ({"a": 1.0, "b": 1, "c": 1},)),
        ("build", ({"a": 1, "b": 1, "c": 1}, True)),
        ("build_dummy", (1.0, 1)),
    ],
)
def test_wrong_types_change_nothing(batch, method, arguments):
    before = _state(batch)
    with pytest.raises(TypeError):
        getattr(batch, method)(*arguments)
    assert _state(batch) == before


def test_full_and_holed_batches(package, batch):
    batch.add_request("d", [])
    batch.add_request("e", [])
    with pytest.raises(package.MetadataError, match="num_reqs is 5"):
        batch.add_request("f", [])
    batch.remove_request("b")
    with pytest.raises(package.MetadataError, match="req_ids is None at row 1"):
        batch.build(dict.fromkeys("acde", 0))
    with pytest.raises(package.MetadataError, match="j is 1, a hole"):
        batch.swap_states(0, 1)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (1, 1, 2**27, 16)]
)
def test_sizes(package, sizes):
    with pytest.raises(package.MetadataError):
        package.PersistentBatch(*sizes)


def test_devices(package):
    with pytest.raises(package.MetadataError, match="device is drum"):
        package.PersistentBatch(1, 1, 1, 1, "drum")
    with pytest.raises(TypeError):
        package.PersistentBatch(1, 1, 1, 1, 3)


def _state(batch):
    rows = range(len(batch.req_ids))
    blocks = [batch.block_table[row, : batch.num_blocks[row]].tolist() for row in rows]
    lengths = batch.num_computed_tokens[: len(rows)].tolist()
    return list(batch.req_ids), blocks, lengths, batch.slot_mapping.tolist()
