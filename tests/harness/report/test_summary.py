"""summary.json has the facts of the run, and fits the committed schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from attnproof.harness.model.run import Cause, Evidence
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report import write_summary
from attnproof.harness.report.formats.schema import SCHEMA_PATH, schema_bytes
from attnproof.harness.report.formats.summary import summary_bytes
from attnproof.harness.verbs.closing_summary import closing_summary
from tests.harness.report.runs import make_finding, make_result, make_run


def test_committed_schema_is_up_to_date():
    assert SCHEMA_PATH.read_bytes() == schema_bytes(), (
        "run python -m attnproof.harness.report.formats.schema"
    )


@pytest.mark.parametrize(
    "name", ["passing", "failing", "sequence", "incomplete", "empty", "slower", "foreign"]
)
def test_summary_validates(name, request):
    summary = json.loads(summary_bytes(request.getfixturevalue(name)))
    schema = json.loads(SCHEMA_PATH.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(summary, schema, cls=jsonschema.Draft202012Validator)


def test_summary_survives_what_candidates_print():
    hostile = make_finding(got="\ud800 \x00 \x1b[1m")
    run = make_run("FAIL", [make_result("build_slot_mapping", "FAIL")], findings=[hostile])
    run.settings["out"] = Path("reports/latest")
    summary = json.loads(summary_bytes(run))
    assert summary["findings"][0]["got"] == "\\ud800 \\x00 \\x1b[1m"
    assert summary["settings"]["out"] == "reports/latest"


def test_a_broken_write_leaves_the_old_file(passing, tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")

    def fail(self, target):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_summary(passing, path)
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
    assert path.read_text() == "old"


def test_a_fault_of_the_harness_is_printed_beside_a_failure(tmp_path):
    reason = "the harness failed on case 8b11 of slots: RuntimeError: no such tensor"
    fault = {"reason": reason, "cause": Cause.INVALID_CASE, "log": "Traceback: line 7"}
    record = make_run("FAIL", [make_result("slots", "FAIL", **fault)], findings=[make_finding()])
    for quiet in (False, True):
        assert (
            f"FAULT OF THE HARNESS slots [optimized]: {reason}; the candidate was judged on 400 "
            "cases before it; its traceback is in summary.json"
        ) in closing_summary(record, tmp_path, quiet=quiet).splitlines()
    [operation] = json.loads(summary_bytes(record))["operations"]
    assert operation["log"] == "Traceback: line 7"


def test_a_fault_of_the_machine_is_no_fault_of_the_harness(tmp_path):
    changes = {"reason": "stopped: the disk is full", "cause": Cause.MACHINE}
    record = make_run("INCOMPLETE", [make_result("slots", "UNVERIFIED", **changes)])
    lines = closing_summary(record, tmp_path)
    assert "FAULT OF THE MACHINE slots [optimized]: stopped: the disk is full; " in lines


def test_advice_is_one_line_on_the_terminal_with_the_place_of_its_list(tmp_path):
    advice = [make_finding(1, kind=Kind.CONTRACT), make_finding(2, kind=Kind.CONTRACT)]
    record = make_run("PASS", [make_result("slots")], advice=advice)
    shown = [line for line in closing_summary(record, tmp_path).splitlines() if "ADVICE" in line]
    place = tmp_path / "index.html"
    assert shown == [f"ADVICE 2 contract (fails no candidate): {place}#advice"]


def test_a_finding_that_no_drawn_case_shows_was_found_while_shrinking(tmp_path):
    finding = make_finding(evidence={"fuzz": Evidence(0, 200), "boundary": Evidence(0, 50)})
    record = make_run("FAIL", [make_result("slots", "FAIL")], findings=[finding])
    words = "shown by none of 200 drawn cases, none of 50 edge cases (found while shrinking)"
    assert words in closing_summary(record, tmp_path)
    shown = msgspec.structs.replace(finding, evidence={"fuzz": Evidence(1, 200)})
    record = msgspec.structs.replace(record, findings=[shown])
    assert "found while shrinking" not in closing_summary(record, tmp_path)


@pytest.mark.parametrize(
    ("verdict", "end"),
    [("PASS", "; the reference refuses each free"), ("UNVERIFIED", "")],
)
def test_the_steps_of_a_class_are_counted_by_method(tmp_path, verdict, end):
    steps = {"alloc": 1200, "free": 0}
    record = make_run("PASS", [make_result("Blocks", verdict, steps=steps)])
    lines = closing_summary(record, tmp_path).splitlines()
    assert f"STEPS Blocks [optimized]: alloc 1,200, free 0{end}" in lines
