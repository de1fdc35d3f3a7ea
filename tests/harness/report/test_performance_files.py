"""The performance in summary.json, summary.md and junit.xml."""

from __future__ import annotations

import json

from attnproof.harness.report.formats.summary import summary_bytes


def performance(run):
    return json.loads(summary_bytes(run))["performance"]


def test_summary_has_the_mean_and_the_worst_workload_of_each_operation(timed):
    summary = performance(timed)
    (total,) = summary["overall"]
    ratios = [comparison.ratio for comparison in timed.bench.comparisons]
    assert total["worst"] == min(ratios)
    assert total["faster"] + total["slower"] + total["no_evidence"] == len(ratios)
    operations = {entry["operation"]: entry for entry in summary["operations"]}
    assert len(operations) == 6
    slot = operations["build_slot_mapping"]
    assert slot["worst_workload"] in {t.workload.name for t in timed.bench.timings}
    assert slot["slower"] == 3
    assert summary["baseline"]["state"] == "not asked for"
    assert summary["noise_floor"] == 0.021


def test_summary_of_a_regression_holds_it(slower):
    baseline = performance(slower)["baseline"]
    assert [entry["costs"] for entry in baseline["worse"]] == ["", "allocations 3 to 4"]
    assert baseline["compared"] == len(slower.bench.timings)


def test_performance_is_null_without_timings(passing):
    assert performance(passing) is None
