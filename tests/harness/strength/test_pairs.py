"""Public bugs as pairs: each can be verified, is found before and raises no alarm after."""

from __future__ import annotations

import json

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.loading import offered_by
from attnproof.harness.strength.files import read_strength
from attnproof.harness.strength.pairs import catalogue
from attnproof.harness.strength.pairs.catalogue import all_pairs
from attnproof.harness.strength.recall import plan_sides


def test_at_least_forty_bugs_of_five_engines():
    pairs = all_pairs()
    assert len({pair.name for pair in pairs}) >= 40
    engines = {pair.id.partition("#")[0] for pair in pairs}
    assert {"vllm-project/vllm", "sgl-project/sglang", "vllm-project/vllm-ascend"} <= engines


@pytest.mark.parametrize("number", range(len(all_pairs())), ids=lambda n: all_pairs()[n].name)
def test_a_pair_says_what_it_is_and_can_be_verified(number):
    pair = all_pairs()[number]
    assert pair.id.count("#") == 1
    assert pair.id.partition("#")[2].isdigit()
    assert pair.mistake.endswith(".")
    assert pair.shown_by
    for side in ("before", *["after"] * pair.can_alarm):
        backend = getattr(catalogue, f"{side}_{number}")
        assert offered_by(backend, ALL[pair.operation]) is not None


def test_a_correct_backend_is_verified_once_an_operation():
    sides = plan_sides(list(range(len(all_pairs()))))
    afters = [all_pairs()[number] for number, side in sides if side == "after"]
    assert len({(pair.operation, pair.part) for pair in afters}) == len(afters)
    assert [side for _, side in sides].count("before") == len(all_pairs())


def test_an_unknown_thread_is_a_usage_error(attnproof):
    done = attnproof("strength", "vllm-project/vllm#56030")
    assert done.returncode == 2
    assert "did you mean vllm-project/vllm#5603" in done.stderr
    assert not done.stdout


@pytest.mark.slow
def test_recall_of_one_thread_as_json(attnproof, tmp_path):
    done = attnproof("strength", "vllm-project/vllm#28537", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert json.loads((tmp_path / "strength.json").read_text()) == record
    recall = read_strength([tmp_path / "strength.json"])[0].recall
    assert (recall.found, recall.runs, recall.alarms, recall.correct) == (1, 1, 0, 1)
    before, after = record["runs"]
    assert (before["side"], before["oracle"], after["findings"]) == ("before", "errors", [])
    assert "recall: 1 of 1" in record["summary"]


@pytest.mark.strength
@pytest.mark.parametrize(
    "thread",
    [
        "ModelTC/LightLLM#998",
        "sgl-project/sglang#8593",
        "vllm-project/vllm-ascend#3572",
        "vllm-project/vllm-ascend#6344",
    ],
)
def test_a_bug_of_another_engine_is_found_and_its_correction_passes(attnproof, thread, tmp_path):
    done = attnproof("strength", thread, "--depth", "quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout
