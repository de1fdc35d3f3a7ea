"""Operations with a wrong result of a timed call have no time, and the run fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from attnproof.harness.model.run import OperationResult
from attnproof.harness.model.timing import (
    Bench,
    Comparison,
    Costs,
    Interval,
    Noise,
    StepComparison,
    Steps,
    Timing,
    Untimed,
    Workload,
)
from attnproof.harness.running.parent.run_builder import RunBuilder
from attnproof.harness.timing.analysis.wrong_results import WrongResult, without_times

WRONG = WrongResult("slots", "mine", "decode, 8 requests", "returned another result")
REASON = "returned another result (decode, 8 requests)"


def timing(operation, candidate):
    return Timing(
        operation=operation,
        section="5",
        candidate=candidate,
        lane="cpu",
        workload=Workload(name="decode, 8 requests", kind="decode", requests=8, tokens=8),
        case_id="1",
        calls=1,
        host_ns=[1.0],
        host=Interval(median_ns=1.0, low_ns=1.0, high_ns=1.0, samples=1),
        costs=Costs(allocations=0, allocated_bytes=0, dispatches=0, copies=0, copied_bytes=0),
    )


def comparison(operation, candidate, peer):
    return Comparison(
        operation=operation,
        workload="decode, 8 requests",
        candidate=candidate,
        peer=peer,
        clock="host",
        ratio=2.0,
        low=1.9,
        high=2.1,
        p_value=0.0,
        verdict="faster",
    )


def steps(candidate, *operations):
    return Steps(trace="a trace", candidate=candidate, operations=operations, steps=[])


@pytest.fixture
def bench():
    return Bench(
        timings=[
            timing(op, name) for op in ("slots", "split") for name in ("mine", "other", "peer")
        ],
        comparisons=[
            comparison(op, name, "peer") for op in ("slots", "split") for name in ("mine", "other")
        ],
        untimed=[Untimed(operation="third", candidate="mine", reason="not offered")],
        noise=Noise(
            comparisons=0, declared=0, floor=0.0, minimum_effect=0.03, clock_resolution_ns=1.0
        ),
        steps=[steps(name, "slots", "split") for name in ("mine", "other", "peer")],
        step_comparisons=[
            StepComparison(
                trace="a trace",
                candidate=name,
                peer="peer",
                geometric_mean=2.0,
                low=1.9,
                high=2.1,
                worst=1.8,
                worst_source="step 1",
            )
            for name in ("mine", "other")
        ],
    )


def test_nothing_changes_without_a_wrong_result(bench):
    assert without_times(bench, []) is bench


def test_the_operation_of_the_candidate_has_no_time(bench):
    left = without_times(bench, [WRONG])
    timed = [(one.operation, one.candidate) for one in left.timings]
    assert ("slots", "mine") not in timed
    assert len(timed) == 5
    assert [(one.operation, one.candidate) for one in left.comparisons] == [
        ("slots", "other"),
        ("split", "mine"),
        ("split", "other"),
    ]
    assert [one.candidate for one in left.steps] == ["other", "peer"]
    assert [one.candidate for one in left.step_comparisons] == ["other"]
    assert [(one.operation, one.reason) for one in left.untimed] == [
        ("third", "not offered"),
        ("slots", REASON),
    ]


def test_nothing_is_compared_with_a_peer_that_was_wrong(bench):
    left = without_times(bench, [WRONG._replace(candidate="peer")])
    assert {one.operation for one in left.comparisons} == {"split"}
    assert left.step_comparisons == []
    assert [one.candidate for one in left.steps] == ["mine", "other"]


def test_the_run_fails_with_the_reason():
    results = [
        OperationResult(name="slots", section="5", candidate=name, device="cpu", verdict="PASS")
        for name in ("mine", "other")
    ]
    run = SimpleNamespace(operations=results, verdict="INCOMPLETE", reason="interrupted")
    RunBuilder.fail(run, {})  # type: ignore[arg-type]
    assert run.verdict == "INCOMPLETE"
    RunBuilder.fail(run, {("slots", "mine"): REASON})  # type: ignore[arg-type]
    assert run.verdict == "FAIL"
    assert run.reason == f"slots of mine {REASON}; interrupted"
    assert [(one.verdict, one.reason) for one in run.operations] == [("FAIL", REASON), ("PASS", "")]
