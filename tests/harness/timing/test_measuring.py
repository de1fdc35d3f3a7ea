"""The time that a plan takes, and its results after a process has died."""

from __future__ import annotations

import contextlib
import dataclasses

import msgspec
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.steps.workloads import timed_batch
from attnproof.harness.model.candidate import REFERENCE, Candidate
from attnproof.harness.model.run import OperationResult
from attnproof.harness.model.timing import Costs
from attnproof.harness.operations import ALL
from attnproof.harness.timing import measuring
from attnproof.harness.timing.measuring import TimingPlan, time_all
from attnproof.harness.timing.plan.entries import FailureKind, Measured, Sample, TimingFailure
from attnproof.harness.timing.plan.timetable import SERVED, timed_cases
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts, CaseVerdict

SPLIT = "split_decodes_and_prefills"


@pytest.fixture
def timing_of(monkeypatch):
    """Run a plan whose entries are measured in turn as the function's argument says."""

    def run(*measured):
        answers = iter(measured)

        class Process(contextlib.nullcontext):
            def __init__(self, *_):
                super().__init__(self)

            def measure(self, *_, **keywords):
                return Measured([], {}) if keywords else next(answers)

        monkeypatch.setattr(measuring, "TimingProcess", Process)
        return time_all(*_plan(len(measured)), lambda *_: None)

    return run


@pytest.fixture
def spend(monkeypatch):
    """Time entries that take half a second beside their samples, by a clock of the test's own.

    Returns the seconds in all, and those for the samples of each turn.
    """

    def run(number, seconds):
        now, sampled = [0.0], []

        class Process(contextlib.nullcontext):
            def __init__(self, *_):
                super().__init__(self)

            def measure(self, _index, budget, *_, itself=False):
                sampled.append((budget.seconds, itself))
                now[0] += budget.seconds + 0.5 * (not itself)
                costs = Costs(
                    allocations=0, allocated_bytes=0, dispatches=0, copies=0, copied_bytes=0
                )
                return Measured([Sample("mine", 10, [100.0] * 7, [], costs)] * (1 + itself))

        monkeypatch.setattr(measuring, "TimingProcess", Process)
        monkeypatch.setattr(measuring.time, "monotonic", lambda: now[0])
        plan, verdicts = _plan(number)
        time_all(dataclasses.replace(plan, seconds=seconds), verdicts, lambda *_: None)
        return now[0], sampled

    return run


def _plan(number):
    batches = [make_batch([1, 1, 5 + i], [9, 20, 3], 16) for i in range(number)]
    cases = timed_cases(
        [ALL[SPLIT]], [timed_batch(f"batch {b.query_lens}", "mixed", b) for b in batches]
    )
    passed = OperationResult(name=SPLIT, section="", candidate="mine", device="cpu", verdict="PASS")
    judged = {timed.case.id: CaseVerdict(timed.case.id) for timed in cases}
    plan = TimingPlan(
        operations=[ALL[SPLIT]],
        candidates=[Candidate("mine", "mine")],
        peers=(),
        cases=cases,
        steps=[],
        seconds=1.0,
    )
    verdicts = {"mine": CandidateVerdicts("cpu", {SPLIT: passed}, judged)}
    return plan, verdicts


def test_the_reference_is_not_timed_on_a_batch_that_a_gpu_serves():
    plan, verdicts = _plan(1)
    [timed] = plan.cases
    workload = msgspec.structs.replace(timed.workload, kind=SERVED)
    verdicts["mine"].cases.clear()  # nobody has judged it
    cases = [timed._replace(workload=workload)]
    untimed, entries = measuring._entries(dataclasses.replace(plan, cases=cases), verdicts)
    assert (untimed, [name for entry in entries for name in entry.names]) == ([], ["mine"])
    loops = [Candidate("mine", REFERENCE)]
    plan = dataclasses.replace(plan, cases=cases, candidates=loops)
    [untimed], entries = measuring._entries(plan, verdicts)
    assert untimed.reason == "a batch that a GPU serves takes its loops seconds a call"
    assert entries == []


def test_a_death_leaves_no_sample_of_the_control(timing_of):
    """A sample of 0 would make a baseline invalid."""
    text = "crashed with SIGSEGV while it was timed"
    outcome = timing_of(Measured([], {"mine": TimingFailure(FailureKind.DIED, text)}))
    assert outcome.bench.control_ns == []
    assert outcome.problems == [f"{SPLIT} of mine crashed with SIGSEGV while it was timed"]


def test_a_candidate_with_a_memory_has_no_time_on_any_workload(timing_of):
    text = "answers repeated inputs from memory"
    failure = TimingFailure(FailureKind.REMEMBERED, text, SPLIT)
    costs = Costs(allocations=0, allocated_bytes=0, dispatches=0, copies=0, copied_bytes=0)
    times = [Sample("mine", 10, [100.0] * 5, [], costs)]
    outcome = timing_of(Measured(times, {}), Measured([], {"mine": failure}))
    assert outcome.bench.timings == []
    assert outcome.wrong == []
    reason = f"{text} (batch (1, 1, 6))"
    assert [one.reason for one in outcome.bench.untimed] == [reason]
    assert outcome.problems == [f"{SPLIT} of mine {reason}"]


def test_the_seconds_of_a_plan_are_those_of_all_its_entries(spend):
    total, sampled = spend(10, 12.0)
    assert total == pytest.approx(12.0)
    assert len(sampled) == 20
    assert min(sampled)[0] > 0.2


def test_without_time_the_fewest_samples_are_taken_and_the_noise_of_few_entries(spend):
    total, sampled = spend(10, 1.0)
    assert total < 6.0
    assert [itself for _, itself in sampled].count(True) == 5
    assert [itself for _, itself in sampled].count(False) == 10
