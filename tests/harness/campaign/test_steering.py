"""Steering: tasks go where coverage grows, and nowhere never."""

from __future__ import annotations

from collections import Counter

from attnproof.harness.campaign.records import Pair
from attnproof.harness.campaign.steering import TURNS, Growth, next_pair

GROWS, IDLE, SLOW = (Pair(name, "mine") for name in ("grows", "idle", "slow"))
ALL = [IDLE, SLOW, GROWS]


def growth_of(rates: dict[Pair, float]) -> dict[Pair, Growth]:
    return {pair: Growth(tasks=2, rate=rate) for pair, rate in rates.items()}


def test_a_task_counts_the_pairs_of_cells_that_it_fills_first():
    growth = Growth()
    assert growth.grows
    assert growth.add({"fuzz": {"3": 5}}, 2.0) == 4  # two cells, each with itself and the other
    assert growth.rate == 2.0
    assert growth.add({"fuzz": {"3": 1, "1": 9}}, 1.0) == 0
    assert not growth.grows
    assert growth.add({"fuzz": {"5": 1}, "trace": {"1": 1}}, 1.0) == 3 + 1
    assert growth.add({}, 1.0) == 0


def test_only_cases_that_fill_something_first_are_kept_and_they_fill_all_of_it():
    features = {"fuzz": {"3": 5, "1": 7, "6": 1}, "trace": {"3": 2}, "corpus": {}}
    growth, whole = Growth(), Growth()
    assert growth.first(features) == {"fuzz": features["fuzz"], "trace": {"3": 2}}
    growth.add(growth.first(features), 1.0)
    whole.add(features, 1.0)
    later = {"fuzz": {"7": 2, "3": 9, "1": 1}, "trace": {"1": 4}}
    assert growth.first(later) == {"fuzz": {"7": 2}}
    assert growth.add(growth.first(later), 1.0) == whole.add(later, 1.0) == 2


def test_a_pair_without_a_task_comes_first():
    growth = growth_of({GROWS: 9.0, IDLE: 0.0}) | {SLOW: Growth()}
    assert next_pair(ALL, growth, [], 0) == SLOW
    assert next_pair(ALL, growth, [SLOW], 0) == GROWS


def test_most_tasks_go_where_coverage_grows_and_some_everywhere():
    growth = growth_of({GROWS: 90.0, IDLE: 0.0, SLOW: 1.0})
    given: Counter[Pair] = Counter()
    for turn in range(40):
        pair = next_pair(ALL, growth, [], turn)
        given[pair] += 1
        growth[pair].tasks += 1
    assert given[GROWS] >= 40 * (TURNS - 1) // TURNS
    assert given[IDLE] >= 4
    assert given[SLOW] >= 4


def test_many_workers_do_not_all_get_the_same_pair():
    growth = growth_of({GROWS: 3.0, IDLE: 0.0, SLOW: 2.0})
    running: list[Pair] = []
    for _ in range(8):
        running.append(next_pair(ALL, growth, running, 0))
    assert Counter(running)[GROWS] == 5
    assert Counter(running)[SLOW] == 3


def test_without_growth_the_pairs_take_turns():
    growth = growth_of(dict.fromkeys(ALL, 0.0))
    running: list[Pair] = []
    for turn in range(6):
        running.append(next_pair(ALL, growth, running, turn))
    assert Counter(running) == dict.fromkeys(ALL, 2)
