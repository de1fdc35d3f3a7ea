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


def test_a_test_case_keeps_its_name_when_other_cases_are_drawn():
    def names(**changes):
        findings = [make_finding(1, **changes), make_finding(2, **changes)]
        run = make_run("FAIL", [make_result("build_slot_mapping", "FAIL")], findings=findings)
        return [name for _, name in cases(run)]

    other = names(field="slot_mapping[9]", expected="5", got="7", diagnosis="off by one token")
    assert names() == other
    name = "build_slot_mapping: equality/slot_mapping (wrong-result)"
    assert other == [name, f"{name} #2"]


def test_a_failure_without_a_finding_still_fails():
    run = make_run("FAIL", [make_result("get_mla_dims", "FAIL")])
    assert cases(run)["optimized (cpu)", "get_mla_dims"].result[0].message == "12 cases failed"


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
