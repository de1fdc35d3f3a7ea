"""junit.xml and summary.md, for CI systems."""

from __future__ import annotations

import junitparser
import pytest

from attnproof.harness.report.formats.junit import junit_bytes
from attnproof.harness.report.formats.markdown import run_markdown
from tests.harness.report.runs import make_finding, make_result, make_run


def cases(run):
    document = junitparser.JUnitXml.fromstring(junit_bytes(run))
    return {(suite.name, case.name): case for suite in document for case in suite}


def test_one_test_case_for_each_finding_and_each_operation_without_one(failing):
    found = cases(failing)
    # Two findings of build_slot_mapping, one of split_attn_metadata, three other operations.
    assert len(found) == 6
    assert found["optimized (cpu)", "is_block_tables_empty"].is_passed
    name = "build_slot_mapping: equality/slot_mapping (wrong-result)"
    (failure,) = found["optimized (cpu)", name].result
    assert failure.message == "slot_mapping[3] is 88, expected 84"
    assert "replay:   attnproof replay" in failure.text
    assert "off by one block" in failure.text
    assert """inline:   printf %s '{"schema":"attnproof.case/1",""" in failure.text
    assert ("optimized (cpu)", "build_slot_mapping") not in found
    crashes = [name for _, name in found if name.startswith("build_slot_mapping: process/")]
    assert len(crashes) == 1
    assert "</script>" in found["optimized (cpu)", crashes[0]].result[0].message


def test_a_test_case_keeps_its_name_when_other_cases_are_drawn():
    def names(**changes):
        findings = [make_finding(1, **changes), make_finding(2, **changes)]
        run = make_run("FAIL", [make_result("build_slot_mapping", "FAIL")], findings=findings)
        return [name for _, name in cases(run)]

    other = names(field="slot_mapping[9]", expected="5", got="7", diagnosis="off by one token")
    assert names() == other
    name = "build_slot_mapping: equality/slot_mapping (wrong-result)"
    assert other == [name, f"{name} #2"]


def test_new_findings_are_first_and_named_so(since_base):
    document = junitparser.JUnitXml.fromstring(junit_bytes(since_base))
    (suite,) = [suite for suite in document if suite.name == "optimized (cpu)"]
    properties = {one.name: one.value for one in suite.properties()}
    assert properties["new since base"] == "1"
    assert properties["base"] == "base/run of 2025-01-02T03:04:05Z"
    first, second, *_ = suite
    assert first.name == "split_attn_metadata: equality/[].block_table_tensor (wrong-result)"
    assert first.result[0].message.startswith("new since base: ")
    assert not second.result or "new since base" not in second.result[0].message
    text = run_markdown(since_base)
    assert "Since the base run base/run of 2025-01-02T03:04:05Z: 1 new finding, 0 fixed" in text
    assert "**F1. new: stale entry read**" in text
    assert "**F2. off by one block**" in text


def test_no_verdict_is_a_skip_with_its_reason(failing):
    found = cases(failing)
    assert found["vllm (cpu)", "build_slot_mapping"].result[0].message == (
        "NOT OFFERED: no such function"
    )
    assert found["optimized (cpu)", "get_mla_dims"].result[0].message == (
        "UNVERIFIED: no <reference> yet"
    )


def test_a_failure_without_a_finding_still_fails():
    run = make_run("FAIL", [make_result("get_mla_dims", "FAIL")])
    assert cases(run)["optimized (cpu)", "get_mla_dims"].result[0].message == "12 cases failed"


def test_a_wrong_result_while_timed_is_the_reason():
    why = "returned another result while it was timed: result is None, expected 3"
    failed = make_result("get_mla_dims", "FAIL", failed=0, reason=why)
    run = make_run("FAIL", [failed], reason=f"get_mla_dims of optimized {why}")
    assert cases(run)["optimized (cpu)", "get_mla_dims"].result[0].message == why
    assert "**Failed:** get_mla_dims of optimized returned another" in run_markdown(run)


def test_junit_statistics_add_up(failing):
    document = junitparser.JUnitXml.fromstring(junit_bytes(failing))
    assert (document.tests, document.failures, document.skipped) == (6, 3, 2)


def test_markdown_of_a_pass(passing):
    text = run_markdown(passing)
    assert text.startswith("## ✓ attnproof: PASS\n\nAll 2 pairs of operation and candidate are ")
    assert "| optimized | cpu | 2 | 0 | 0 | 0 |" in text
    assert "seed `20240917`" in text


def test_markdown_of_a_failure_names_the_cause_and_the_replay(failing):
    text = run_markdown(failing)
    assert "## ✗ attnproof: FAIL" in text
    assert "**F1. off by one block**" in text
    assert f"```sh\n{failing.findings[0].command}\n```" in text
    assert "\\<script\\>alert(1)" in text
    assert "- no \\<reference\\> yet: `get_mla_dims` of `optimized`" in text


def test_markdown_of_an_incomplete_run_has_the_reason(incomplete):
    text = run_markdown(incomplete)
    assert "## ◐ attnproof: INCOMPLETE" in text
    assert "**Incomplete:** time ran out before 1 operation was checked" in text


def test_markdown_of_an_empty_run(empty):
    assert "No operation was checked" in run_markdown(empty)


def test_markdown_stays_short():
    findings = [make_finding(i, message="x" * 9_000, expected="9" * 9_000) for i in range(200)]
    text = run_markdown(make_run("FAIL", [make_result("a", "FAIL")], findings=findings))
    assert "190 more findings: see index.html." in text
    assert len(text) < 20_000


@pytest.mark.parametrize("text", ["a|b", "`", "``x``", "<img>", "a\nb", "[x](http://y)"])
def test_markdown_takes_text_literally(text):
    run = make_run("FAIL", [make_result("a", "FAIL")], findings=[make_finding(diagnosis=text)])
    (line,) = [line for line in run_markdown(run).splitlines() if line.startswith("**F1.")]
    shown = line.removeprefix("**F1. ").removesuffix("**  ")
    assert shown.replace("\\", "").replace("<!-- -->", "") == text.replace("\n", "n")
    assert "<img>" not in shown
    assert "[x]" not in shown
    assert "http://" not in shown
