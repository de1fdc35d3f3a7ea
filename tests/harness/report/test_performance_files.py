"""The performance in summary.json, summary.md and junit.xml."""

from __future__ import annotations

import json

import junitparser

from attnproof.harness.report.formats.junit import junit_bytes
from attnproof.harness.report.formats.markdown import run_markdown
from attnproof.harness.report.formats.summary import summary_bytes


def performance(run):
    return json.loads(summary_bytes(run))["performance"]


def suites(run):
    return {suite.name: suite for suite in junitparser.JUnitXml.fromstring(junit_bytes(run))}


def test_summary_has_the_mean_and_the_worst_workload_of_each_operation(timed):
    found = performance(timed)
    (total,) = found["overall"]
    ratios = [comparison.ratio for comparison in timed.bench.comparisons]
    assert total["worst"] == min(ratios)
    assert total["faster"] + total["slower"] + total["no_evidence"] == len(ratios)
    operations = {entry["operation"]: entry for entry in found["operations"]}
    assert len(operations) == 6
    slot = operations["build_slot_mapping"]
    assert slot["worst_workload"] in {t.workload.name for t in timed.bench.timings}
    assert slot["slower"] == 3
    assert found["baseline"]["state"] == "not asked for"
    assert found["noise_floor"] == 0.021


def test_summary_of_a_regression_holds_it(slower):
    baseline = performance(slower)["baseline"]
    assert [entry["costs"] for entry in baseline["worse"]] == ["", "allocations 3 to 4"]
    assert baseline["compared"] == len(slower.bench.timings)


def test_performance_is_null_without_timings(passing):
    assert performance(passing) is None


def test_markdown_has_a_row_a_pair_and_the_regressions(slower):
    text = run_markdown(slower)
    assert text.startswith("## ▼ attnproof: SLOWER")
    assert "**Slower:** build_slot_mapping takes 18 % longer" in text
    assert "| optimized | vllm | host | " in text
    assert "**▼ 2 timings worse than baseline main.**" in text
    assert text.count("\n- ") == 2
    assert "allocations 3 to 4" in text


def test_markdown_of_a_foreign_baseline_is_incomplete(foreign):
    assert "**◐ Incomplete against baseline main.**" in run_markdown(foreign)


def test_markdown_of_a_foreign_baseline_has_counts_and_no_time(on_another_machine):
    lines = run_markdown(on_another_machine).splitlines()
    (line,) = [line for line in lines if line.startswith("- ◇")]
    assert line.endswith(": allocations 3 to 4")


def test_markdown_without_timings_has_no_performance(passing):
    assert "geometric mean" not in run_markdown(passing)


def test_junit_fails_for_worse_timings(slower):
    suite = suites(slower)["performance against baseline main"]
    cases = {(case.classname.rpartition(".")[2], case.name): case for case in suite}
    failed = {key: case for key, case in cases.items() if case.result and case.name != "comparison"}
    assert set(failed) == {
        ("optimized", "make_local_attention_virtual_batches"),
        ("vllm", "make_local_attention_virtual_batches"),
    }
    (entry,) = failed["optimized", "make_local_attention_virtual_batches"].result
    assert entry.message.startswith("decode, 64 requests: 1.18")
    assert entry.message.endswith(" the baseline's host time (1.15 to 1.22)")
    # A timing that only the baseline has is a skip, never green.
    (comparison,) = [case for case in suite if case.name == "comparison"]
    assert "swap_blocks" in comparison.result[0].message


def test_junit_of_a_foreign_baseline_is_skipped_with_its_reason(foreign):
    (case,) = suites(foreign)["performance against baseline main"]
    assert case.result[0].message.startswith("INCOMPLETE: baseline main is of another machine")


def test_junit_without_a_baseline_has_no_suite_for_it(timed):
    assert set(suites(timed)) == {"optimized (cpu)", "vllm (cpu)"}
