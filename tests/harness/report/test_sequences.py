"""Sequences in every format: steps, changed fields, and the first difference."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnproof.harness.model.case import Case
from attnproof.harness.model.place import Place
from attnproof.harness.report.formats.summary import summarize
from attnproof.harness.report.page.cards import build_cards, size_sentence
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.pictures.changes import change_of, change_text
from attnproof.harness.report.pictures.sequence_input import input_size
from attnproof.harness.report.pictures.sequence_view import MAX_FIELDS, MAX_STEPS, view_sequence
from attnproof.harness.report.pictures.state import state_picture
from attnproof.harness.report.terminal.sequence import draw_steps
from tests.harness.report.runs import (
    ORACLES,
    make_difference,
    make_run,
    make_sequence_finding,
    make_step_difference,
    shown,
)


def wide(steps=25, **changes):
    """Return a finding whose big state changes at every step, and is wrong at the last."""
    draw = random.Random(3)
    outputs = []
    for step in range(steps):
        state = {f"field_{i}": [draw.randrange(10**6) for _ in range(256)] for i in range(20)}
        state["table"] = [[draw.randrange(1000) for _ in range(48)] for _ in range(12)]
        for name, value in state.items():
            got = value[::-1] if step == steps - 1 else value
            outputs.append(make_step_difference(f"[{step}].{name}", value, got, "int64 [256] cpu"))
    lines = [(f"advance all {step}", f"batch.advance({step})") for step in range(steps)]
    place = Place("table", step=steps - 1)
    fields = {"steps": lines, "outputs": outputs, "field": f"{place}[0, 0]", "place": place}
    return make_sequence_finding(**fields | changes)


def test_steps_show_what_they_changed():
    finding = make_sequence_finding()
    view = view_sequence(finding.steps, finding.outputs, finding.place)
    assert [step.number for step in view.steps] == [1, 2, 3, 4, 5]
    assert [[change.name for change in step.changes] for step in view.steps] == [
        ["rows", "req_ids", "num_reqs"],  # what goes wrong in the end comes first
        [],
        ["rows", "req_ids", "num_reqs"],
        ["req_ids"],
        [],
    ]
    assert [change_text(change) for change in view.steps[2].changes] == [
        "[1, 0] 0 -> 7",
        "[1] new 'b'",
        "1 -> 2",
    ]
    assert view.steps[1].remarks == ("raises ValueError, as expected", "no visible change")


def test_the_failing_step_holds_what_is_wrong():
    finding = make_sequence_finding()
    view = view_sequence(finding.steps, finding.outputs, finding.place)
    assert [step.failing for step in view.steps] == [False, False, False, True, False]
    assert [step.reached for step in view.steps] == [True, True, True, True, False]
    (wrong,) = view.steps[3].wrong
    assert (wrong.field, wrong.expected[1], wrong.got[1]) == ("rows", [3, 4, 0], [7, 0, 0])
    assert view.steps[3].equal == ("req_ids", "num_reqs", "built")
    # Without a field in the finding the first step that differs is the one.
    again = view_sequence(finding.steps, finding.outputs)
    assert [step.number for step in again.steps if step.failing] == [4]


def test_a_step_of_equal_sides_may_fail_too():
    """Both sides violate an invariant: no field differs, but the step is marked."""
    finding = make_sequence_finding(
        field="[1].req_ids", place=Place("req_ids", step=1), oracle="invariants"
    )
    outputs = [output for output in finding.outputs if output.equal]
    view = view_sequence(finding.steps, outputs, finding.place)
    assert [step.number for step in view.steps if step.failing] == [2]
    assert not any(step.wrong for step in view.steps)


def test_a_field_that_comes_and_goes():
    outputs = [
        make_step_difference("[0].slots", None, None),
        make_step_difference("[1].slots", [5, 6], [5, 6]),
        make_step_difference("[2].other", 1, 1),
    ]
    steps = view_sequence([("a", ""), ("b", ""), ("c", "")], outputs).steps
    changes = [[(c.name, change_text(c)) for c in step.changes] for step in steps]
    assert changes == [
        [],
        [("slots", "[0..1] new 5 6")],
        [("other", "None -> 1"), ("slots", "[5, 6] -> None")],
    ]
    assert steps[0].unchanged


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("NHD", "HND", "'NHD' -> 'HND'"),
        ([1, 2, 3], [1, 5, 3], "[1] 2 -> 5"),
        ([1, 2, 3], [4, 5, 3], "[0..1] 1 2 -> 4 5"),
        ([1, 2, 3], [1], "[1..2] gone (was 2 3)"),
        ([], [7], "[0] new 7"),
        ([[1, 2]], [[1, 2], [3, 4]], "[1, 0..1] new 3 4"),
        ([[1, 2]], [], "[[1, 2]] -> []"),
        ([[]], [[], []], "[[]] -> [[], []]"),
        ([0] * 300, [1] * 300, "252 more elements changed"),
    ],
)
def test_changes_in_words(before, after, words):
    assert change_text(change_of("x", before, after, False)).endswith(words)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=30,
)


@given(VALUES, VALUES, st.booleans())
def test_any_change_is_drawn(before, after, first):
    outputs = [
        make_difference("x", value, value, step=step, equal=True)
        for step, value in enumerate([before, after])
    ]
    steps = [("one", "one()"), ("two", "two()")]
    assert shown(draw_steps(steps, outputs))
    for step in view_sequence(steps, outputs).steps:
        if svg := state_picture(step, "f1"):
            root = ElementTree.fromstring(svg)
            assert root.find("desc").text
            assert {"changed", "unused"} & {box.get("class") for box in root.iter("rect")}


def test_the_picture_of_a_state_marks_changes_without_colour():
    finding = make_sequence_finding()
    steps = view_sequence(finding.steps, finding.outputs, finding.place).steps
    root = ElementTree.fromstring(state_picture(steps[2], "f1-s3"))
    classes = [element.get("class") for element in root.iter("rect")]
    assert classes.count("changed") == classes.count("bar") == 3
    assert classes.count("equal") == 3  # one neighbour each, and what num_reqs was
    texts = [element.text for element in root.iter("text")]
    assert {"rows", "[1]", "req_ids", "'b'", "num_reqs", "→"} <= set(texts)
    assert root.find("title").text == "Changed by step 3: add request b"
    assert "num_reqs 1 -> 2" in root.find("desc").text
    assert root.find("defs") is None  # nothing is hatched
    assert state_picture(steps[1], "f1-s2") == ""


def test_card_of_a_sequence(sequence):
    source = render_html(sequence, ORACLES)
    for words in (
        "5 steps, shrunk from 22.",
        "First wrong field, after step 4",
        "✗ goes wrong here",
        "first difference at [1, 0]: expected 3, got 7; 2 of 6 elements wrong",
        "raises ValueError, as expected",
        "Changed alike on both sides:",
        "Later differences follow from the first one",
        'data-copy="Copy the program"',
        "from candidate import Batch",
    ):
        assert words in source, words
    assert source.count('<li class="failing">') == 1
    assert "url(#f1-s4-0-wrong)" in source
    for words in ("no batch", "@example(", "<dt>steps</dt>", "None</b>"):
        assert words not in source, words


def test_a_long_sequence_of_wide_states_stays_small():
    finding = wide()
    (card,) = build_cards([finding])
    last = card.sequence.steps[-1]
    assert (len(last.fields), len(last.step.more_wrong)) == (4, 17)
    assert card.sequence.size < 450_000
    source = render_html(make_run("FAIL", [], findings=[finding]), {})
    assert source.count("<li>") + source.count('<li class="failing">') >= 25
    assert len(source) < 500_000


def test_many_long_sequences_stay_below_five_megabytes():
    first = wide(steps=6)
    findings = [first] * 30
    plain = [("step " * 20, "code() " * 60)] * 25
    findings += [make_sequence_finding(i, steps=plain, outputs=[]) for i in range(200)]
    cards = build_cards(findings)
    assert cards[0].sequence.pictured
    assert not cards[-1].sequence or not cards[-1].sequence.pictured
    assert sum(card.sequence.size if card.sequence else 0 for card in cards) < 3_000_000


def test_only_steps_around_the_first_difference_are_drawn():
    steps = [(f"step {i}", "") for i in range(100)]
    outputs = [make_step_difference(f"[{i}].x", i, i + (i >= 60)) for i in range(100)]
    view = view_sequence(steps, outputs, Place("x", step=60))
    assert len(view.steps) == MAX_STEPS
    assert view.above == "steps 1 to 32 not drawn"
    assert view.below == "steps 65 to 100 not drawn"
    assert [step.number for step in view.steps if step.failing] == [61]
    passed = view_sequence(steps, [make_step_difference("[0].x", 1, 1)])
    assert (passed.steps[-1].number, passed.below) == (100, "")


def test_no_more_fields_than_fit_are_drawn():
    finding = wide(steps=2)
    step = view_sequence(finding.steps, finding.outputs, finding.place).steps[0]
    assert (len(step.changes), len(step.more)) == (MAX_FIELDS, 21 - MAX_FIELDS)
    assert step.changes[0].name == "table"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "5 steps, shrunk from 22"),
        ({"steps_before": 5}, "5 steps; it was found at this size"),
        ({"steps": [("get", "get()")], "steps_before": 2}, "1 step, shrunk from 2"),
    ],
)
def test_the_size_of_a_sequence_is_in_steps(changes, sentence):
    assert size_sentence(make_sequence_finding(**changes)) == sentence


def test_a_candidate_that_died_leaves_the_steps_of_its_case():
    steps = [{"do": "export", "layout": "HND"}, {"do": "get"}]
    case = Case("layout_sequence", None, {"steps": steps})
    finding = make_sequence_finding(
        case=case, oracle="process", field="", place=None, steps=[], outputs=[], snippet=""
    )
    source = render_html(make_run("FAIL", [], findings=[finding]), ORACLES)
    assert "<b>export(layout=HND)</b>" in source
    assert "goes wrong here" not in source
    assert input_size(finding) == "2 steps"


def test_the_summary_has_the_number_of_steps(sequence, failing):
    assert [finding.steps for finding in summarize(sequence).findings] == [5]
    assert [finding.steps for finding in summarize(failing).findings] == [0, 0, 0]


def test_terminal_draws_a_sequence(snapshot):
    finding = make_sequence_finding()
    text = shown(draw_steps(finding.steps, finding.outputs, finding.place))
    assert text == snapshot
    assert text.isascii()


def test_a_missing_error_is_named():
    missing = make_step_difference("[0].raises", "ValueError", None)
    text = shown(draw_steps([("swap rows 0 and 9", "batch.swap(0, 9)")], [missing]))
    assert "raises  class of the error, None without one\n" in text
    assert "  first difference: expected 'ValueError', got None\n" in text


def test_after_an_error_no_missing_field_is_drawn():
    outputs = [
        make_step_difference("[0].raises", None, "TypeError"),
        *(make_step_difference(f"[0].x{i}", i, None) for i in range(20)),
    ]
    (step,) = view_sequence([("build", "build()")], outputs).steps
    assert [output.field for output in step.wrong] == ["raises"]
    assert step.more_wrong == tuple(f"x{i}" for i in range(20))
    text = shown(draw_steps([("build", "build()")], outputs))
    assert "also wrong: x0, x1, x2, x3, x4, x5, x6, x7 and 12 more\n" in text


def test_terminal_marks_nothing_where_the_candidate_passed():
    finding = make_sequence_finding()
    equal = [output for output in finding.outputs if output.equal]
    text = shown(draw_steps(finding.steps, equal, passed=True))
    assert ">" not in text.replace("->", "")
    assert "not compared" not in text
