"""Sequences run step by step, in a process of their own if isolated, and as a snippet."""

from __future__ import annotations

import os

import pytest

from attnproof import reference
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.case import Case
from attnproof.harness.model.program import Do, Let, Line, Script, source
from attnproof.harness.operations import ALL
from attnproof.harness.operations.shared.sequence import SequenceCall, run_script, snippet
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by


def sequence(observe=lambda names: {"rows": names["rows"]}, *, isolated=False):
    return SequenceCall(parts=("validate",), write=None, observe=observe, isolated=isolated)


def script(*statements, raises=()):
    lines = [
        Line(f"step {source([each])}", [each], raises=number in raises)
        for number, each in enumerate(statements)
    ]
    return Script(IMPORTS, [Let("rows", [])], tuple(lines))


IMPORTS = {"environ": "os", "_exit": "os", "truediv": "operator", "exit": "sys"}
NO_PARTS = Parts({}, ())
APPEND = Do("rows.append", (1,))


def test_each_step_is_recorded_as_it_was_when_it_ended():
    transcript = run_script(sequence(), NO_PARTS, script(APPEND, APPEND))
    assert [step["rows"] for step in transcript.steps] == [[1], [1, 1]]
    assert transcript.error is None


def test_a_sequence_continues_after_the_error_of_malformed_input():
    steps = script(Do("rows.index", (7,)), APPEND, raises={0})
    transcript = run_script(sequence(), NO_PARTS, steps)
    assert [step["raises"] for step in transcript.steps] == ["ValueError", None]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (Do("truediv", (1, 0)), "ZeroDivisionError"),
        (Do("exit"), "SystemExit"),
        (Do("rows.lost"), "AttributeError"),
    ],
)
def test_an_error_on_good_input_ends_the_sequence(call, kind):
    transcript = run_script(sequence(), NO_PARTS, script(APPEND, call, APPEND))
    assert [step["raises"] for step in transcript.steps] == [None, kind]
    assert kind in transcript.log


def test_a_state_that_cannot_be_read_ends_the_sequence():
    transcript = run_script(
        sequence(lambda names: {"rows": names["lost"]}), NO_PARTS, script(Let("rows", 1))
    )
    assert transcript.steps[0]["raises"] == "unreadable: 'lost'"


def test_an_isolated_sequence_does_not_change_the_process():
    before = dict(os.environ)
    count = Do("rows.append", (Do("environ.__len__"),))
    steps = script(Do("environ.update", ({"LEFT_BEHIND": "yes"},)), count)
    transcript = run_script(sequence(isolated=True), NO_PARTS, steps)
    assert transcript.steps[-1]["rows"] == [len(before) + 1]
    assert dict(os.environ) == before


def test_an_isolated_sequence_that_exits_has_an_error():
    transcript = run_script(sequence(isolated=True), NO_PARTS, script(Do("_exit", (3,))))
    assert transcript.steps == []
    assert transcript.error is not None


def cached_layout():
    answers = {}

    def get_kv_cache_layout():
        return answers.setdefault("first", reference.get_kv_cache_layout())

    return get_kv_cache_layout


SET_AFTER_GET = Case(
    "layout_sequence",
    None,
    {"steps": [{"do": "get"}, {"do": "set", "layout": "HND"}, {"do": "get"}, {"do": "get"}]},
)


def test_the_first_step_that_differs_is_the_finding():
    operation = ALL["layout_sequence"]
    right = offered_by(reference, operation)
    wrong = Parts(right.names | {"get_kv_cache_layout": cached_layout()}, right.own)
    failures = judge(Trial(operation, SET_AFTER_GET, wrong, right, "cpu")).failures
    assert (failures[0].oracle, failures[0].where) == ("sequences", "[2].layout")
    assert {f.where for f in failures if f.oracle == "sequences"} == {"[2].layout"}
    assert failures[0].message.startswith("after step 3 (get): [2].layout is 'NHD'")


@pytest.mark.parametrize("name", [name for name, op in ALL.items() if op.inputs.machine])
def test_the_snippet_is_a_complete_program(forked, name):
    operation = ALL[name]
    _, case = list(operation.inputs.boundaries())[-1]
    parts = offered_by(reference, operation)
    program = snippet(operation, operation.call.script(case), parts, "attnproof.reference")
    done = forked(lambda: exec(program, {"__name__": "__main__"}))
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("}")


def test_the_snippet_observes_after_every_step():
    """An observation may depend on earlier ones, so the snippet makes as many as `run_script`."""
    operation = ALL["batch_sequence"]
    _, case = next(iter(operation.inputs.boundaries()))
    steps = operation.call.script(case)
    program = snippet(operation, steps, offered_by(reference, operation), "reference")
    assert program.count("look(globals())") == len(steps.lines)


def test_parts_that_a_candidate_lacks_are_the_references():
    class Candidate:
        set_kv_cache_layout = staticmethod(lambda layout: layout)

    parts = offered_by(Candidate, ALL["layout_sequence"])
    assert parts.own == ("set_kv_cache_layout",)
    assert parts.names["get_kv_cache_layout"] is reference.get_kv_cache_layout
    assert offered_by(object, ALL["layout_sequence"]) is None
