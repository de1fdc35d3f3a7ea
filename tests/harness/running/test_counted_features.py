"""A run counts the features of its cases, each case once."""

from __future__ import annotations

from attnproof.harness.cases.coverage.features import cells_of
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.operations import ALL

SPLIT = "split_decodes_and_prefills"


def test_an_examination_counts_the_features_of_each_origin(examine_candidate):
    result = examine_candidate("attnproof.reference", SPLIT, examples=30).result
    counted = {origin: sum(masks.values()) for origin, masks in result.features.items()}
    assert set(counted) == {"fuzz", "boundary"}
    # Malformed cases have no features: an engine makes none.
    assert 0 < counted["fuzz"] <= result.origins["fuzz"]
    interface = INTERFACES["vllm-0.11"]
    cases = [interface.fit(case) for _, case in ALL[SPLIT].inputs.boundaries()]
    boundaries = {f"{cells_of(case):x}" for case in cases}
    assert boundaries == set(result.features["boundary"])


def test_cases_of_shrinking_are_not_counted(examine_candidate):
    result = examine_candidate("two_bugs", SPLIT, seed=3).result
    assert result.origins["shrinking"]
    for origin, masks in result.features.items():
        assert sum(masks.values()) <= result.origins[origin]
