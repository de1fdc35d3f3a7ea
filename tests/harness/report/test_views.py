"""Batches and fields are cut to the part around the first difference; the rest is counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.report.pictures.batch_view import MAX_CELLS, MAX_ROWS, view_batch
from attnproof.harness.report.pictures.difference_view import MAX_LINES, same, view_difference
from attnproof.harness.report.pictures.focus import Focus, find_focus, find_marks
from tests.harness.report.runs import MIXED, make_difference


def kinds(row):
    return "".join(row.kind(p)[0] for piece in row.pieces for p in piece)


def test_a_small_batch_is_drawn_whole():
    view = view_batch(MIXED)
    assert [kinds(row) for row in view.rows] == [
        "c" * 9 + "q" + "uu",
        "cc" + "q" * 6,
        "c" * 5 + "uuu",
        "qqqu",
    ]
    assert [row.stale_columns for row in view.rows] == [2, 3, 3, 4]
    assert (view.padded_rows, view.padded_tokens, view.spare_slots) == (2, 4, 3)
    assert [sorted(row.sampled) for row in view.rows] == [[9], [7], [], [2]]
    assert (view.above, view.below) == ("", "")


def test_a_batch_without_requests_can_be_viewed():
    view = view_batch(Batch(4, (), (), (), padded_requests=3))
    assert view.rows == ()
    assert view.facts.startswith("0 requests and 0 query tokens, block size 4, 3 padded rows")


def test_many_rows_are_cut_around_the_focus():
    batch = Batch(4, (2,) * 100, (0,) * 100, tuple((i,) for i in range(100)))
    view = view_batch(batch, Focus(50, 101))
    assert [row.number for row in view.rows] == list(range(44, 44 + MAX_ROWS))
    assert view.above == "requests 0 to 43 not drawn (44 rows, 88 query tokens)"
    assert view.below == "requests 56 to 99 not drawn (44 rows, 88 query tokens)"
    (focused,) = [row for row in view.rows if row.focused]
    assert (focused.number, focused.focus_position) == (50, 1)
    assert [row.number for row in view_batch(batch, Focus(99, None)).rows][-1] == 99


@given(st.integers(1, 300), st.integers(0, 5000), st.integers(0, 5000), st.data())
def test_long_rows_keep_their_edges_and_the_focus(block_size, computed, query, data):
    count = -(-(computed + query) // block_size)
    batch = Batch(block_size, (query,), (computed,), (tuple(range(count)),))
    token = data.draw(st.integers(0, query - 1)) if query else None
    (row,) = view_batch(batch, Focus(0, token)).rows
    drawn = [p for piece in row.pieces for p in piece]
    assert drawn == sorted(set(drawn))
    assert len(drawn) <= MAX_CELLS
    assert all(0 <= p < row.capacity for p in drawn)
    if row.length:
        assert {0, row.length - 1} <= set(drawn)
    if query:
        assert {computed, computed + token} <= set(drawn)


def test_marks_are_slices_or_chunks():
    slices = Case("split_attn_metadata", MIXED, {"cuts": [3]})
    rows = view_batch(MIXED, None, find_marks(slices)).rows
    assert [sorted(row.marks) for row in rows] == [[], [4], [], []]
    chunks = Case("make_local_attention_virtual_batches", MIXED, {"attn_chunk_size": 4})
    rows = view_batch(MIXED, None, find_marks(chunks)).rows
    assert [sorted(row.marks) for row in rows] == [[4, 8], [4], [4], []]
    assert not find_marks(Case("x", MIXED, {"cuts": "nonsense"})).meaning


@pytest.mark.parametrize(
    ("operation", "field", "expected", "got", "focus"),
    [
        ("x", "slot_mapping", list(range(10)), [*range(7), 0, 0, 0], Focus(3, 7)),
        ("build_slot_mapping", "result", list(range(14)), [9, *range(1, 14)], Focus(0, 0)),
        ("x", "seq_lens", [1, 2, 3, 4], [1, 2, 4, 4], Focus(2, None)),
        ("x", "query_start_loc", [0, 1, 7, 7, 10], [0, 1, 8, 7, 10], Focus(1, None)),
        ("x", "slot_mapping", list(range(14)), [*range(13), 0], None),
        ("x", "seq_lens", [1, 2], [1, 3], None),
        ("x", "[1].seq_lens", [1, 2, 3, 4], [1, 2, 4, 4], None),
        ("x", "num_reqs", 4, 5, None),
    ],
)
def test_the_first_difference_is_found_in_the_batch(operation, field, expected, got, focus):
    case = Case(operation, MIXED)
    assert find_focus(case, [make_difference(field, expected, got)]) == focus


@pytest.mark.parametrize(
    ("field", "index", "element", "focus"),
    [
        ("[0].slot_mapping", None, 2, Focus(1, 2)),
        ("[1].slot_mapping", None, 1, Focus(1, 4)),
        ("[1].seq_lens", None, 0, Focus(1, None)),  # the slice begins inside request 1
        ("[1].seq_lens", None, 2, Focus(3, None)),
        ("[1].query_start_loc", None, 3, Focus(3, None)),
        ("seq_lens", 1, 2, Focus(3, None)),  # one child alone
        ("[2].seq_lens", None, 0, None),  # there is no third slice
        ("[1].max_seq_len", None, 0, None),
    ],
)
def test_the_first_difference_is_found_in_a_slice(field, index, element, focus):
    right = [5] * 4
    wrong = [*right[:element], 6, *right[element + 1 :]]
    params = {"cuts": [3]} | ({"index": index} if index is not None else {})
    case = Case("split_attn_metadata", MIXED, params)
    assert find_focus(case, [make_difference(field, right, wrong)]) == focus


def test_a_request_that_is_alone_is_the_affected_one():
    wrong = [make_difference("num_reqs", 1, 2)]
    alone, padded = (Batch(4, (1,), (0,), ((3,),), padded_requests=rows) for rows in (0, 1))
    assert find_focus(Case("x", alone), wrong) == Focus(0, None)
    assert find_focus(Case("x", padded), wrong) is None


def test_a_vector_is_cut_into_lines_around_the_first_difference():
    right = list(range(1000))
    wrong = [*right[:500], -7, *right[501:]]
    view = view_difference(make_difference("slot_mapping", right, wrong), 40)
    assert (view.total, view.wrong, view.first.at) == (1000, 1, (500,))
    assert view.above == "480 elements before, all equal"
    assert view.sentence == (
        "first difference at [500]: expected 500, got -7; 1 of 1,000 elements wrong"
    )
    assert len(view.lines) <= MAX_LINES
    assert any(line.wrong for line in view.lines)


def test_few_lines_stand_before_a_difference_at_the_end():
    right = list(range(1000))
    view = view_difference(make_difference("out", right, [*right[:-1], -7]), 40)
    assert [line.wrong for line in view.lines] == [False, False, True]


def test_a_matrix_keeps_its_rows():
    difference = make_difference("block_table_tensor", [[1, 2], [3, 4]], [[1, 2], [3, 9]])
    view = view_difference(difference, 80)
    assert [line.label for line in view.lines] == ["[0]", "[1]"]
    assert [line.wrong for line in view.lines] == [False, True]
    assert view.first.at == (1, 1)


def test_missing_and_extra_elements_are_wrong():
    view = view_difference(make_difference("x", [1, 2], [1, 2, 3]), 80)
    assert view.first == ((2,), None, "3", True)
    view = view_difference(make_difference("x", [[1], [2]], [[1]]), 80)
    assert view.first == ((1, 0), "2", None, True)


def test_values_of_different_depth_are_one_cell():
    view = view_difference(make_difference("x", [1, 2], None, "list of 2"), 80)
    assert (view.scalar, view.total, view.wrong) == (True, 1, 1)
    assert view.sentence == "first difference: expected [1, 2], got None"


def test_a_difference_of_types_alone_is_reported():
    difference = make_difference("x", [1], [1], "int64 [1] cpu", got_type="int32 [1] cpu")
    assert view_difference(difference, 80).sentence == (
        "type int32 [1] cpu where int64 [1] cpu is right"
    )


def test_the_oracle_chooses_the_wrong_elements():
    difference = make_difference("x", [1, 2, 3], [9, 2, 9], wrong=[[2]])
    view = view_difference(difference, 80)
    assert [cell.wrong for cell in view.lines[0].cells] == [False, False, True]


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, True, False),
        (1, 1.0, False),
        (math.nan, math.nan, True),
        (0.0, -0.0, True),
        (2, 2, True),
    ],
)
def test_sameness(a, b, equal):
    assert same(a, b) is equal
