"""The results of timing after a process has died."""

from __future__ import annotations

import contextlib

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.steps.workloads import timed_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.run import OperationResult
from attnproof.harness.operations import ALL
from attnproof.harness.timing import measuring
from attnproof.harness.timing.measuring import TimingPlan, time_all
from attnproof.harness.timing.plan.entries import FailureKind, Measured, TimingFailure
from attnproof.harness.timing.plan.timetable import timed_cases
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts, CaseVerdict

SPLIT = "split_decodes_and_prefills"


@pytest.fixture
def dying(monkeypatch):
    """A stand-in for the process that times, in which every candidate dies."""

    class Dying(contextlib.nullcontext):
        def __init__(self, *_):
            super().__init__(self)

        def measure(self, *_, **__):
            text = "crashed with SIGSEGV while it was timed"
            return Measured([], {"mine": TimingFailure(FailureKind.DIED, text)})

    monkeypatch.setattr(measuring, "TimingProcess", Dying)


def test_a_death_leaves_no_sample_of_the_control(dying):
    """A sample of 0 would make a baseline invalid."""
    workload = timed_batch("mixed, 3 requests", "mixed", make_batch([1, 1, 5], [9, 20, 3], 16))
    cases = timed_cases([ALL[SPLIT]], [workload])
    passed = OperationResult(name=SPLIT, section="", candidate="mine", device="cpu", verdict="PASS")
    judged = {timed.case.id: CaseVerdict(timed.case.id) for timed in cases}
    plan = TimingPlan(
        operations=[ALL[SPLIT]],
        candidates=[Candidate("mine", "mine")],
        peer="",
        cases=cases,
        steps=[],
        seconds=1.0,
    )
    verdicts = {"mine": CandidateVerdicts("cpu", {SPLIT: passed}, judged)}
    outcome = time_all(plan, verdicts, lambda *_: None)
    assert outcome.bench.control_ns == []
    assert outcome.problems == [f"{SPLIT} of mine crashed with SIGSEGV while it was timed"]
