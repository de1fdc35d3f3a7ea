"""A run counts the features of its cases, each case once."""

from __future__ import annotations

import json

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.coverage.features import cells_of
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import EngineStep
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine

SPLIT = "split_decodes_and_prefills"


def test_an_examination_counts_the_features_of_each_origin(examine_candidate):
    result = examine_candidate("attnproof.reference", SPLIT, examples=30, vary=False).result
    counted = {origin: sum(masks.values()) for origin, masks in result.features.items()}
    assert set(counted) == {"fuzz", "boundary"}
    # Malformed cases have no features: an engine makes none.
    assert 0 < counted["fuzz"] <= result.origins["fuzz"]
    interface = INTERFACES["vllm-0.11"]
    cases = [interface.fit(case) for _, case in ALL[SPLIT].inputs.boundaries()]
    boundaries = {f"{cells_of(case):x}" for case in cases}
    assert boundaries == set(result.features["boundary"])


def test_cases_of_shrinking_are_not_counted(examine_candidate):
    result = examine_candidate("two_bugs", SPLIT, seed=3, vary=False).result
    assert result.origins["shrinking"]
    for origin, masks in result.features.items():
        assert sum(masks.values()) <= result.origins[origin]


def test_variations_of_engine_steps_follow_where_tests_lack_their_features(tmp_path):
    batch = make_batch([1] * 40, [3000] * 40, 16)
    step = EngineStep(batch, "here")
    candidate = Candidate("reference", "attnproof.reference", interface="vllm-0.11")
    settings = Settings(examples=24, examples_db="", vary=True)
    ledger = tmp_path / "ledger.jsonl"
    examine(ALL[SPLIT], candidate, settings, [step], [], ledger)
    sources = [json.loads(line).get("source", "") for line in ledger.read_text().splitlines()]
    assert any(source.startswith("like an engine step: ") for source in sources)
