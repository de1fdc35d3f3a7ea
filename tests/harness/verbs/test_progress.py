"""The text of a run's progress: total, rate, findings, time left."""

from __future__ import annotations

from attnproof.harness.model.run import OperationResult
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.verbs.progress import Tally


def test_progress_has_total_rate_findings_and_the_time_left():
    seconds = iter([0.0, 10.0, 10.0, 20.0, 20.0, 50.0, 150.0])
    tally = Tally(lambda: next(seconds))
    tally.planned(3)
    tally.started("a", "mine")
    tally.started("b", "mine")
    tally.progressed("a", "mine", 50)
    assert str(tally) == "0 of 3 operations, 50 cases (5/s), 0 findings"
    tally.failing(outcome("a", 50))
    assert str(tally) == "0 of 3 operations, 50 cases (5/s), 1 finding"
    tally.ended(outcome("a", 60))
    tally.progressed("b", "mine", 40)
    assert str(tally) == "1 of 3 operations, 100 cases (5/s), 0 findings, about 40 s left"
    tally.ended(outcome("not offered", 0))
    assert str(tally) == "1 of 3 operations, 100 cases (2/s), 0 findings, about 10 s left"
    assert str(tally) == "1 of 3 operations, 100 cases (1/s), 0 findings"


def test_the_time_left_is_smooth_and_not_shown_at_once():
    seconds = iter([0.0, 1.0, 1.0, 10.0, 10.0])
    tally = Tally(lambda: next(seconds))
    tally.planned(10)
    for name in ("a", "b"):
        tally.started(name, "mine")
    tally.ended(outcome("a", 60))  # 10 s are expected
    assert "left" not in str(tally)
    tally.ended(outcome("b", 60))  # by itself it would mean 50 s, so 40 s left
    assert str(tally).endswith("about 12 s left")


def outcome(name: str, cases: int) -> Outcome:
    result = OperationResult(
        name=name, candidate="mine", section="1", device="cpu", verdict="PASS", cases=cases
    )
    return Outcome(result, [])
