"""SVG and terminal pictures: well-formed, described in words, never by colour alone."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.report.pictures.batch import batch_picture
from attnproof.harness.report.pictures.difference import difference_picture
from attnproof.harness.report.pictures.focus import Focus
from attnproof.harness.report.terminal.case import draw_batch, draw_case, draw_difference
from tests.harness.report.runs import MIXED, make_difference, shown


def parse(svg):
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    named = {element.get("id"): element.text for element in root}
    assert named[root.get("aria-labelledby")]
    assert named[root.get("aria-describedby")]
    return root


def words(root):
    return [element.text for element in root.iter("text")]


def test_batch_picture_shows_every_kind_of_cell(snapshot):
    root = parse(batch_picture(MIXED, "f1", Focus(1, 3)))
    classes = [element.get("class") for element in root.iter("rect")]
    assert classes.count("query") == 10 + 2  # and two in the legend
    assert classes.count("computed") == 16 + 1
    assert classes.count("focus") == 1 + 1
    assert [*words(root), root.find("desc").text] == snapshot


def test_batch_picture_stays_small():
    lens = tuple(range(5000, 5300))
    blocks = tuple(tuple(range(length // 16 + 1)) for length in lens)
    svg = batch_picture(Batch(16, lens, (0,) * 300, blocks), "f1", Focus(200, None))
    assert len(svg) < 60_000
    assert "requests 0 to 193 not drawn (194 rows, " in svg
    parse(svg)


@pytest.mark.parametrize(
    "batch",
    [
        Batch(4, (), (), ()),
        Batch(4, (), (), (), padded_requests=2),
        Batch(1, (3,), (0,), ((2**31 - 1, 5, 6),)),
        Batch(4, (0,), (0,), ((),)),
        Batch(4, (2,), (3,), ((1,),)),  # malformed on purpose: a block short
    ],
)
def test_unusual_batches_are_drawn(batch):
    parse(batch_picture(batch, "f1"))
    assert shown(draw_batch(batch))


def test_difference_picture_marks_and_labels_wrong_elements():
    difference = make_difference("slot_mapping", [1, 2, 3], [1, 9, 8])
    root = parse(difference_picture(difference, "f1"))
    assert words(root).count("≠") == 2
    assert {"expected", "got", "2", "9", "3", "8"} <= set(words(root))
    fills = [element.get("fill") for element in root.iter("rect")]
    assert fills.count("url(#f1-wrong)") == 2
    classes = [element.get("class") for element in root.iter("rect")]
    assert (classes.count("focus"), classes.count("frame")) == (1, 1)
    assert "[1]: expected 2, got 9; [2]: expected 3, got 8" in root.find("desc").text


def test_equal_lines_are_drawn_once():
    difference = make_difference("x", [[1, 2], [3, 4]], [[1, 2], [3, 9]])
    assert words(parse(difference_picture(difference, "f"))).count("both") == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=30,
)


@given(VALUES, VALUES)
def test_any_two_values_are_drawn(expected, got):
    difference = make_difference("x", expected, got, equal=False)
    parse(difference_picture(difference, "f1"))
    assert shown(draw_difference([difference]))


def test_terminal_draws_the_case(snapshot):
    case = Case("build_slot_mapping", MIXED, {"block_size": 4}, "short table")
    right = list(range(10))
    text = shown(
        draw_case(case, [make_difference("slot_mapping", right, [*right[:7], 0, 0, 0])]), width=120
    )
    assert text == snapshot


def test_terminal_draws_differences_side_by_side(snapshot):
    text = shown(
        draw_difference(
            [
                make_difference("slot_mapping", [196, 197, 198], [196, 12, 198], "int64 [3] cpu"),
                make_difference("num_reqs", 3, 3, "int"),
                make_difference("max_query_len", 8, 9, "int"),
            ]
        )
    )
    assert text == snapshot


def test_long_lines_are_whole_where_the_terminal_wraps():
    batch = Batch(1, (30,), (0,), (tuple(range(100, 130)),))
    text = shown(draw_batch(batch), width=40, soft_wrap=True)
    assert "100[#] 101[#]" in text
    assert "129[#]\n" in text


def test_terminal_is_plain_ascii():
    case = Case("split_attn_metadata", MIXED, {"cuts": [3]})
    text = shown(draw_case(case))
    assert "r1  q 6 c 2 s 8   4[oo##] 21[|####]" in text
    assert "| a slice starts" in text
    assert text.isascii()
    assert shown(draw_difference([make_difference("x", [1], [2])])).isascii()
