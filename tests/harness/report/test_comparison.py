"""Comparisons of runs: which findings are new, fixed, the same, or no longer reported."""

from __future__ import annotations

import json

import msgspec
import pytest

from attnproof.harness.model.verdict import Kind
from attnproof.harness.report import write_summary
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.shared.comparison import as_compared, compare, read_run, with_base
from attnproof.harness.report.shared.identity import fingerprints, identity
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.closing_summary import closing_summary
from tests.harness.report.runs import (
    MIXED,
    ORACLES,
    make_deviation,
    make_finding,
    make_result,
    make_run,
)


def compared(old, new):
    return compare(as_compared(old), as_compared(new), "old")


def names(findings):
    return [finding.diagnosis for finding in findings]


def without(run, *operations, **changes):
    findings = [finding for finding in run.findings if finding.operation not in operations]
    return msgspec.structs.replace(run, findings=findings, **changes)


@pytest.fixture
def two():
    """A run with a finding in each of two operations."""
    from attnproof.harness.model.case import Case

    sliced = Case("split_attn_metadata", MIXED, {"cuts": [3]})
    findings = [make_finding(1), make_finding(2, case=sliced, diagnosis="stale entry read")]
    operations = [make_result(name, "FAIL") for name in ("build_slot_mapping", sliced.operation)]
    return make_run("FAIL", operations, findings=findings)


def test_the_drawn_case_is_no_part_of_the_identity():
    from attnproof.harness.model.case import Case

    other = Case("build_slot_mapping", MIXED, {"block_size": 8})
    changed = {"case": other, "field": "slot_mapping[7]", "kind": Kind.CONTRACT, "expected": "1"}
    changed |= {
        "diagnosis": "wrong order",
        "got": "2",
        "message": "x",
        "requests": 9,
        "failed_cases": 1,
        "function": "a.py:9",
    }
    assert identity(make_finding(1)) == identity(make_finding(2, **changed))


@pytest.mark.parametrize("name", ["operation", "candidate", "oracle", "field", "kind"])
def test_another_bug_has_another_identity(name):
    assert identity(make_finding()) != identity(make_finding(**{name: "other"}))


def test_what_another_finding_of_the_older_run_showed_is_not_new(two):
    other = make_finding(3, field="seq_lens[0]", diagnosis="off by one token")
    causes = (two.findings[0].cause, other.cause)
    result = make_result("build_slot_mapping", "FAIL", causes=causes)
    first = msgspec.structs.replace(two, findings=two.findings[:1], operations=[result])
    second = msgspec.structs.replace(first, findings=[other])
    for old, new in ((first, second), (second, first)):
        comparison = compared(old, new)
        assert comparison.same == as_compared(new).findings
        assert comparison.new == comparison.fixed == comparison.vanished == []
    (gone,) = compared(first, msgspec.structs.replace(two, findings=[])).fixed
    assert gone.cause == two.findings[0].cause


def test_a_run_of_an_earlier_version_is_refused(two, tmp_path):
    write_summary(two, tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    del summary["findings"][0]["cause"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UsageError, match=r"is of an earlier version, .*: run verify again"):
        read_run(tmp_path)


def test_fingerprints_of_one_identity_are_numbered():
    first, second, third = fingerprints([make_finding(), make_finding(2), make_finding(oracle="x")])
    assert (first[-2:], second[-2:], third[-2:]) == (":1", ":2", ":1")
    assert first[:-2] == second[:-2] != third[:-2]


def test_new_fixed_and_same(two):
    comparison = compared(without(two, "build_slot_mapping"), without(two, "split_attn_metadata"))
    assert names(comparison.new) == ["off by one block"]
    assert names(comparison.fixed) == ["stale entry read"]
    assert comparison.same == comparison.vanished == comparison.notes == []
    comparison = compared(two, two)
    assert names(comparison.same) == ["off by one block", "stale entry read"]
    assert comparison.new == comparison.fixed == comparison.lost == comparison.gained == []


def test_what_has_no_verdict_is_not_fixed(two):
    operations = [make_result("build_slot_mapping", "UNVERIFIED", reason="time ran out")]
    comparison = compared(two, without(two, "build_slot_mapping", operations=operations))
    (gone,) = comparison.vanished
    assert (gone.finding.diagnosis, gone.reason) == ("off by one block", "UNVERIFIED: time ran out")
    assert comparison.fixed == []
    assert [(change.operation, change.reason) for change in comparison.lost] == [
        ("build_slot_mapping", "time ran out"),
        ("split_attn_metadata", "not part of the run"),
    ]
    back = compared(without(two, "build_slot_mapping", operations=operations), two)
    assert [change.verdict for change in back.gained] == ["FAIL", "FAIL"]
    empty = compared(two, without(two, "build_slot_mapping", operations=[]))
    assert empty.vanished[0].reason == "the operation is not part of the newer run"


def test_what_became_a_known_deviation_is_not_fixed(two):
    kinds, oracles = (Kind.WRONG_RESULT,), ("equality",)
    known = make_deviation("D7", cases=3, kinds=kinds, oracles=oracles)
    waived = without(two, "build_slot_mapping", deviations=[known])
    assert [gone.reason for gone in compared(two, waived).vanished] == ["now a known deviation: D7"]
    stale = msgspec.structs.replace(waived, deviations=[msgspec.structs.replace(known, cases=0)])
    assert names(compared(two, stale).fixed) == ["off by one block"]


def test_differences_of_the_runs_are_noted(two):
    settings = two.settings | {"examples": 50, "contract": "strict"}
    notes = compared(two, msgspec.structs.replace(two, settings=settings)).notes
    assert notes == [
        "the older run has 400 drawn cases for each operation, the newer one 50",
        "contract: none in the older run, strict in the newer one",
    ]


def test_a_run_is_read_from_its_folder_or_its_summary(two, tmp_path):
    write_summary(two, tmp_path / "summary.json")
    assert read_run(tmp_path) == read_run(tmp_path / "summary.json") == as_compared(two)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a run: name the folder of a report, or its summary.json"),
        ("{", "is not the summary of a run"),
        ("[1]", "is not the summary of a run"),
        ('{"schema": "attnproof.case/1"}', "has schema 'attnproof.case/1', this version reads"),
        ('{"schema": "attnproof.summary/1"}', "is damaged: .*; run verify again"),
        ("[" * 100_000, "is not the summary of a run"),
    ],
)
def test_what_is_no_run_is_refused(text, message, tmp_path):
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UsageError, match=message) as refused:
        read_run(tmp_path)
    assert "\n" not in str(refused.value)


def test_new_findings_come_first(two, tmp_path):
    base = as_compared(without(two, "split_attn_metadata"))
    run = with_base(two, base, "base/run")
    assert names(run.findings) == ["stale entry read", "off by one block"]
    page = render_html(run, ORACLES)
    line = "Since the base run base/run of 2025-01-02T03:04:05Z: 1 new finding, 0 fixed, 1 the same"
    assert line in page
    assert page.count(">new since base<") == 1
    assert page.index("new since base<") < page.index("Off by one block")
    closing = closing_summary(run, tmp_path).splitlines()
    assert closing[0].startswith("NEW split_attn_metadata [optimized] (wrong-result): stale entry")
    assert closing[-3] == f"{line}."
    write_summary(run, tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_bytes())
    assert [finding["diagnosis"] for finding in written["base"]["new"]] == ["stale entry read"]


def test_without_a_base_nothing_is_new(two, tmp_path):
    assert "new since base" not in render_html(two, ORACLES)
    assert "NEW" not in closing_summary(two, tmp_path)
