"""An arena locates modified inputs and writes beside inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof.harness.cases.memory.arena import GUARD_WORDS, STALE_PATTERNS, Arena, Piece

PLAIN = Piece("lengths", np.arange(4, dtype=np.int32), False, (1,))
STRIDED = Piece("strided", np.arange(3, dtype=np.int32), False, (2,))
TABLE = Piece("table", np.arange(6, dtype=np.int32).reshape(2, 3), False, (7, 2))
SLOTS = Piece("slots", np.arange(5, dtype=np.int64), False, (1,))


@pytest.fixture
def arena():
    return Arena([PLAIN, STRIDED, TABLE, SLOTS], STALE_PATTERNS[0])


def write_beside(arena, name, offset):
    """Write the word at an offset from the start of an input, in words."""
    first = arena.tensors[name].data_ptr()
    for buffer in arena.buffers:
        if buffer.data_ptr() <= first < buffer.data_ptr() + buffer.nbytes:
            buffer[(first - buffer.data_ptr()) // buffer.element_size() + offset] = 0


def test_tensors_have_the_requested_values_and_layout(arena):
    assert arena.tensors["lengths"].tolist() == [0, 1, 2, 3]
    assert arena.tensors["strided"].stride() == (2,)
    assert arena.tensors["table"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arena.tensors["table"].stride() == (7, 2)
    assert arena.unexpected_writes() == []


@pytest.mark.parametrize(("name", "index"), [("lengths", 3), ("strided", 2), ("slots", 0)])
def test_modified_input_is_located(arena, name, index):
    arena.tensors[name][index] += 1
    [write] = arena.unexpected_writes()
    assert (write.name, write.inside) == (name, True)


def test_elements_of_a_strided_table_are_inside_and_words_between_are_not(arena):
    table = arena.tensors["table"]
    table[1, 2] = 99
    assert arena.unexpected_writes()[0].inside
    table[1, 2] = 5
    between = table.as_strided((1,), (1,), table.storage_offset() + 1)
    between.fill_(0)
    [write] = arena.unexpected_writes()
    assert (write.name, write.word, write.inside) == ("table", 1, False)


@pytest.mark.parametrize("offset", [-1, 4])
def test_a_write_beside_an_input_is_not_inside(arena, offset):
    write_beside(arena, "lengths", offset)
    [write] = arena.unexpected_writes()
    assert (write.name, write.word, write.inside) == ("lengths", offset, False)


def test_written_inputs_may_change_but_not_the_words_beside_them(arena):
    slots = arena.tensors["slots"]
    slots.fill_(7)
    assert arena.unexpected_writes(frozenset({"slots"})) == []
    write_beside(arena, "slots", 5)
    assert not arena.unexpected_writes(frozenset({"slots"}))[0].inside


def test_owner_of_a_view_is_the_input_that_it_overlaps(arena):
    assert arena.owner(arena.tensors["table"][1:]) == "table"
    assert arena.owner(arena.tensors["slots"][2:4]) == "slots"
    assert arena.owner(torch.zeros(3)) is None
    assert arena.owner(arena.tensors["slots"][:0]) is None


def arenas_of(pattern):
    """Return arenas of two inputs, whose names differ."""
    values = np.arange(5, dtype=np.int32)
    pieces = ([PLAIN, PLAIN._replace(name=f"more{i}", values=values)] for i in range(40))
    return [Arena(pair, STALE_PATTERNS[pattern]) for pair in pieces]


def test_an_empty_piece_takes_no_memory():
    pieces = [Piece("none", np.zeros(0, dtype=np.int32), False, (1,)), PLAIN]
    arena = Arena(pieces, STALE_PATTERNS[0])
    assert arena.tensors["none"].numel() == 0
    (buffer,) = arena.buffers
    assert 2 * GUARD_WORDS + 4 <= buffer.numel() - GUARD_WORDS < 2 * GUARD_WORDS + 12


def test_some_inputs_have_a_storage_of_their_own_with_the_first_pattern_only():
    for pattern, sizes in ((0, {1, 2}), (1, {1})):
        storages = [
            {tensor.untyped_storage().data_ptr() for tensor in arena.tensors.values()}
            for arena in arenas_of(pattern)
        ]
        assert {len(pair) for pair in storages} == sizes


def test_some_inputs_begin_at_multiples_of_eight_words_with_the_first_pattern():
    starts = [
        {tensor.storage_offset() % 8 for tensor in arena.tensors.values()} for arena in arenas_of(0)
    ]
    assert {0} in starts
    assert any(start != {0} for start in starts)


def test_a_storage_of_its_own_ends_with_the_input():
    alone = [arena for arena in arenas_of(0) if not arena.tensors["lengths"].storage_offset()]
    assert {arena.tensors["lengths"].untyped_storage().nbytes() for arena in alone} == {16}


def test_inputs_follow_each_other_with_the_second_pattern():
    orders = set()
    for arena in arenas_of(1):
        first, second = sorted(arena.tensors.values(), key=torch.Tensor.data_ptr)
        assert first.data_ptr() + first.nbytes == second.data_ptr()
        assert arena.owner(first) != arena.owner(second)
        orders.add(first is arena.tensors["lengths"])
        second[0] += 1
        (write,) = arena.unexpected_writes()
        assert (arena.tensors[write.name] is second, write.word, write.inside) == (True, 0, True)
    assert orders == {False, True}


@pytest.mark.parametrize("pattern", [0, 1])
def test_address_and_storage_offset_are_multiples_of_8_bytes_independently(pattern):
    rows = [arena.tensors["lengths"] for arena in arenas_of(pattern)]
    rows = [tensor for tensor in rows if tensor.storage_offset()]
    places = {(one.data_ptr() % 8, one.storage_offset() * 4 % 8) for one in rows}
    assert places == {(0, 0), (0, 4), (4, 0), (4, 4)}
