"""Variations of engine steps toward features that no test has."""

from __future__ import annotations

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.coverage.features import FEATURES, STARTS, cells_of
from attnproof.harness.cases.coverage.steering import toward_gaps
from attnproof.harness.model.case import Case
from attnproof.harness.running.case_check import problem_of


def case(query, computed):
    return Case("split_decodes_and_prefills", make_batch(query, computed, 16), PARAMS)


PARAMS = {
    "decode_threshold": 1,
    "require_uniform": False,
    "treat_short_extends_as_decodes": True,
}
SMALL = case([1, 1], [3, 5])
MANY = case([1] * 40, [3] * 40)
LONG = case([1, 600], [3, 5000])
REQUESTS = (1 << len(FEATURES[0].values)) - 1


def made(steps, tested, count=9):
    return list(toward_gaps(steps, tested, count, 1, problem_of))


def test_a_step_whose_pairs_are_tested_is_left_out():
    assert not made([SMALL], [cells_of(SMALL)])
    assert not made([], [cells_of(SMALL)])
    assert not made([MANY], [cells_of(SMALL)], count=0)


def test_the_step_with_most_gaps_comes_first_with_other_features_changed():
    found = made([SMALL, MANY, LONG], [cells_of(SMALL)])
    assert [one.batch.query_lens for _, one in found] == [(1, 600), (1,) * 40]
    for name, one in found:
        assert name.startswith("like an engine step: ")
        assert one not in (MANY, LONG)
        assert not problem_of(one)


def test_the_variation_fills_the_gap():
    ((_, one),) = made([MANY], [cells_of(SMALL)])
    assert FEATURES[0].key == "requests"
    assert STARTS[0] == 0
    assert cells_of(one) & REQUESTS == cells_of(MANY) & REQUESTS


def test_the_same_seed_gives_the_same_cases():
    steps, tested = [MANY, LONG], [cells_of(SMALL)]
    assert made(steps, tested) == made(steps, tested)


def test_a_step_without_a_batch_has_nothing_to_change():
    plain = Case("get_dcp_local_seq_lens", None, {"seq_lens": [5000, 7]})
    assert not made([plain], [cells_of(SMALL)])
