"""The driver: nothing found is lost, none is found twice, whatever is killed."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
import pytest

from attnproof.harness.campaign.records import Pair, Shrunk
from attnproof.harness.running import interrupt
from tests.harness.campaign.instant_pool import NAMES, PAIRS, case_of

FIRST, SECOND = NAMES


def found_by(driver) -> Counter[tuple[str, str]]:
    """Return operation and field of each finding of the report."""
    return Counter(
        (pair.operation, finding.id)
        for pair, state in driver.state.pairs.items()
        for finding in state.outcome(pair.operation, "3", pair.candidate, "cpu").findings
    )


def tasks_of(pool) -> Counter[tuple[str, int]]:
    return Counter((o.operation, o.number) for o in pool.orders if o.number is not None)


def test_each_root_cause_is_one_finding_and_shrunk_once(pool, drive):
    pool.bugs = {(FIRST, n): ["slots"] for n in range(6)} | {(SECOND, 1): ["decodes", "tokens"]}
    driver = drive(8)
    expected = {(FIRST, "slots"): 1, (SECOND, "decodes"): 1, (SECOND, "tokens"): 1}
    assert found_by(driver) == expected
    shrinking = [order for order in pool.orders if order.number is None]
    assert sorted(order.operation for order in shrinking) == sorted([FIRST, SECOND])
    state = driver.state.pairs[PAIRS[1]]
    (finding, _) = state.outcome(SECOND, "3", "mine", "cpu").findings
    assert (finding.requests, finding.requests_before) == (1, 101)


def test_workers_that_find_the_same_at_once_give_one_finding(pool, drive):
    pool.workers = 4
    pool.bugs = {(name, n): ["out"] for name in NAMES for n in range(9)}
    driver = drive(8)
    assert found_by(driver) == {(FIRST, "out"): 1, (SECOND, "out"): 1}
    sizes = {f.requests for s in driver.state.pairs.values() for f in s.findings.values()}
    assert sizes == {1}


def test_the_counts_of_all_tasks_are_added(pool, drive):
    pool.bugs = {(FIRST, 0): ["slots"], (FIRST, 2): ["slots"]}
    driver = drive(6)
    outcomes = [s.outcome(p.operation, "3", "mine", "cpu") for p, s in driver.state.pairs.items()]
    assert sum(outcome.result.cases for outcome in outcomes) == 60
    failed = next(outcome for outcome in outcomes if outcome.findings)
    assert failed.result.verdict == "FAIL"
    evidence = failed.findings[0].evidence["fuzz"]
    assert (evidence.shown, evidence.cases) == (2, failed.result.cases)
    assert failed.findings[0].failed_cases == 2


@pytest.mark.parametrize("answers", range(1, 9))
def test_a_killed_driver_goes_on_without_loss_or_repetition(pool, drive, answers):
    pool.workers = 2
    pool.bugs = {(FIRST, 0): ["slots"], (SECOND, 1): ["decodes"], (FIRST, 2): ["slots", "pads"]}
    pool.most_orders = answers
    ended_tasks = drive(8).state.tasks
    before = {pair: set(s.ended) for pair, s in drive(8, work=False).state.pairs.items()}
    assert sum(map(len, before.values())) == ended_tasks < 8
    pool.orders.clear()
    driver = drive(8)
    again = {(name, n) for (name, n) in tasks_of(pool) if n in before[Pair(name, "mine")]}
    assert not again, "a task that had ended ran again"
    ended = {(p.operation, n) for p, state in driver.state.pairs.items() for n in state.ended}
    expected = {(name, root) for (name, n) in ended for root in pool.bugs.get((name, n), ())}
    assert len(expected) >= 2
    assert found_by(driver) == dict.fromkeys(expected, 1)
    assert driver.state.tasks == 8


def test_what_the_last_task_found_is_shrunk_by_the_next_driver(pool, drive):
    pool.bugs = {(FIRST, 0): ["slots"]}
    pool.most_orders = 1
    drive(1)
    pool.orders.clear()
    driver = drive(1)
    assert [order.number for order in pool.orders] == [None]
    (finding,) = driver.state.pairs[PAIRS[0]].outcome(FIRST, "3", "mine", "cpu").findings
    assert (finding.requests, finding.requests_before) == (1, 100)


def test_a_finding_that_follows_from_a_later_one_is_dropped(pool, drive):
    """As in `verify`, which lists neither one of two findings of one case twice."""
    pool.bugs = {(FIRST, 0): ["slots"], (FIRST, 1): ["out"]}
    driver = drive(4)
    state = driver.state.pairs[PAIRS[0]]
    assert found_by(driver) == {(FIRST, "slots"): 1, (FIRST, "out"): 1}
    (latest,) = [f for f in state.findings.values() if f.id == "out"]
    last = [line for line in drive(4, work=False).ledger.lines if isinstance(line, Shrunk)][-1]
    outcome = msgspec.structs.replace(last.answer.outcome, findings=[latest], root_causes=[])
    answer = msgspec.structs.replace(last.answer, outcome=outcome)
    driver.state.add(msgspec.structs.replace(last, answer=answer))
    assert found_by(driver) == {(FIRST, "out"): 1}


def test_a_case_of_a_lost_machine_is_a_finding(pool, drive):
    """The task that found it has not ended, and its case is in the database."""
    pool.save(FIRST, case_of(FIRST, "slots", 50))
    assert found_by(drive(2)) == {(FIRST, "slots"): 1}


def test_a_failure_that_does_not_occur_alone_is_kept_as_it_was_drawn(pool, drive):
    pool.bugs, pool.flaky = {(FIRST, n): ["slots"] for n in range(9)}, {"slots"}
    driver = drive(6)
    assert found_by(driver) == {(FIRST, "slots"): 1}
    (finding,) = driver.state.pairs[PAIRS[0]].outcome(FIRST, "3", "mine", "cpu").findings
    assert finding.requests == 100
    assert sum(order.number is None for order in pool.orders) == 1


@pytest.mark.parametrize(("times", "verdict"), [(2, "PASS"), (3, "UNVERIFIED")])
def test_a_lost_task_runs_again_and_is_given_up_in_the_end(pool, drive, times, verdict):
    pool.lost[FIRST, 0] = times
    driver = drive(2)
    assert tasks_of(pool)[FIRST, 0] == min(times + 1, 3)
    result = driver.state.pairs[PAIRS[0]].outcome(FIRST, "3", "mine", "cpu").result
    assert result.verdict == verdict
    assert verdict == "PASS" or "lost 3 times: the worker died" in result.reason


def test_shrinking_that_was_lost_is_done_again_though_no_task_is_left(pool, drive):
    pool.bugs, pool.lost = {(FIRST, 0): ["slots"]}, Counter({(FIRST, None): 1})
    (finding,) = drive(1).state.pairs[PAIRS[0]].findings.values()
    assert finding.requests == 1


def test_a_case_that_cannot_be_shrunk_is_kept_as_it_was_drawn(pool, drive):
    pool.bugs, pool.lost = {(FIRST, 0): ["slots"]}, Counter({(FIRST, None): 3})
    driver = drive(4)
    assert found_by(driver) == {(FIRST, "slots"): 1}


def test_the_same_task_has_the_same_seed(pool, drive):
    pool.most_orders = 1
    drive(3)
    drive(3)
    seeds = {}
    for order in pool.orders:
        seeds.setdefault((order.operation, order.number), set()).add(order.settings.seed)
    assert all(len(each) == 1 for each in seeds.values())
    assert len({next(iter(each)) for each in seeds.values()}) == len(seeds)


def test_boundaries_are_run_by_the_first_task_alone(pool, drive):
    drive(6)
    assert [o.settings.boundaries for o in pool.orders] == [o.number == 0 for o in pool.orders]


def test_tasks_of_all_operations_share_simulations_and_no_step(pool, drive):
    drive(20)
    by_seed: dict[int, set[int | None]] = {}
    parts = Counter()
    for order in pool.orders:
        by_seed.setdefault(order.steps.seed, set()).add(order.number // order.steps.parts)
        parts[order.operation, order.steps.seed, order.steps.part] += 1
    assert sorted(map(list, by_seed.values())) == [[0], [1]]
    assert max(parts.values()) == 1


def test_an_interrupt_ends_the_tasks_and_shrinks_what_was_found(pool, drive, monkeypatch):
    pool.bugs, pool.workers = {(FIRST, 0): ["slots"]}, 2
    checks = iter([False, False, True])

    def check() -> None:
        if next(checks, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(interrupt, "check", check)
    driver = drive(50)
    assert driver.hurried
    assert driver.state.tasks <= 2
    assert found_by(driver) == {(FIRST, "slots"): 1}


def test_an_operation_that_is_not_offered_gets_no_second_task(pool, drive):
    pool.not_offered = {FIRST}
    drive(6)
    assert tasks_of(pool) == {(FIRST, 0): 1} | {(SECOND, n): 1 for n in range(5)}


def test_the_ledger_has_a_line_for_each_task(pool, drive, tmp_path):
    pool.bugs = {(FIRST, 0): ["slots"]}
    drive(3)
    lines = [json.loads(line) for line in (tmp_path / "campaign.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines].count("task") == 3
    assert lines[0]["type"] == "campaign"


def test_a_line_has_only_the_cases_that_filled_something_first(pool, drive, tmp_path):
    drive(6)
    lines = [json.loads(line) for line in (tmp_path / "campaign.jsonl").read_text().splitlines()]
    features = [x["answer"]["outcome"]["result"].get("features") for x in lines if "number" in x]
    assert features.count({"fuzz": {"1": 10}}) == 2  # each task of the pool fills a cell
    assert all(each in ({"fuzz": {f"{1 << n:x}": 10}} for n in range(6)) for each in features)
