"""Known deviations do not fail a run, hide no other failure, and are stale without a case."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import Outcome, examine
from attnproof.harness.running.worker.worker import warm_up
from tests.harness.conftest import CANDIDATES

SPLIT = "split_decodes_and_prefills"
# two_bugs.py has these two and nothing else.
LATE = {"id": "D1", "when": "params['decode_threshold'] == 8", "title": "loses a decode"}
EXTRA = {"id": "D2", "when": "params['decode_threshold'] != 8", "title": "one token too many"}
BATCH = make_batch([2, 2, 9], [3, 3, 3], 4)
TWO_DECODES = Sourced(
    Case(SPLIT, BATCH, {"decode_threshold": 8, "require_uniform": False}), "corpus"
)
"""A case that shows D1, in case no drawn one does."""
SEVEN_TOKENS = Sourced(
    Case(SPLIT, make_batch([2, 7], [3, 0], 4), {"decode_threshold": 1, "require_uniform": False}),
    "corpus",
)
"""A case on which segfaults.py ends its process."""


def toml(entries):
    shared = {"operations": [SPLIT], "versions": "*", "reference": "two_bugs.py"}
    lines = []
    for entry in entries:
        values = {
            key: msgspec.json.encode(value).decode() for key, value in (shared | entry).items()
        }
        lines += ["[[deviation]]", *(f"{key} = {value}" for key, value in values.items())]
    return "\n".join(lines)


@pytest.fixture
def examined(tmp_path):
    """Examine a candidate with known deviations."""
    warm_up()

    def run(entries, name="two_bugs", **settings) -> Outcome:
        path = tmp_path / "known.toml"
        path.write_text(toml(entries), encoding="utf-8")
        source = str(CANDIDATES / f"{name}.py")
        candidate = Candidate(name, source, interface="vllm-0.11", deviations=(str(path),))
        chosen = Settings(
            **{"examples": 60, "examples_db": "", "timeout_s": 5.0, "vary": False, "sparse": True}
            | settings
        )
        ledger = tmp_path / "ledger.jsonl"
        return examine(ALL[SPLIT], candidate, chosen, [], [TWO_DECODES, SEVEN_TOKENS], ledger)

    return run


def test_known_deviations_alone_are_no_failure(examined, tmp_path):
    outcome = examined([LATE, EXTRA])
    result = outcome.result
    assert (result.verdict, result.failed, outcome.findings) == ("DEVIATES", 0, [])
    late, extra = outcome.deviations
    assert (late.id, extra.id) == ("D1", "D2")
    assert late.cases + extra.cases == result.known > 0
    assert result.oracles["equality"].failed == 0
    assert result.oracles["equality"].known == result.known
    assert set(late.fields) > {"num_decodes", "num_prefills"}
    assert extra.fields == ("num_prefill_tokens",)
    assert "equality" in extra.oracles
    known = b'"failures":[],"known":[["D2","equality","num_prefill_tokens",'
    assert known in (tmp_path / "ledger.jsonl").read_bytes()


def test_the_smallest_case_of_a_deviation_is_shown(examined):
    late, extra = examined([LATE, EXTRA]).deviations
    assert late.case.num_requests + late.case.batch.padded_requests == 2
    assert late.case.params["decode_threshold"] == 8
    assert "num_decodes is 1, expected 2" in late.message
    assert extra.case.num_requests + extra.case.batch.padded_requests == 1
    assert extra.shown.outputs
    assert extra.shown.failed_cases == extra.cases


@pytest.mark.parametrize("known", [LATE, EXTRA])
def test_a_known_deviation_does_not_hide_another_mistake(examined, known):
    outcome = examined([known])
    assert outcome.result.verdict == "FAIL"
    [finding] = outcome.findings
    assert finding.case.params["decode_threshold"] == (8 if known is EXTRA else 1)
    [shown] = outcome.deviations
    assert shown.id == known["id"]
    assert shown.cases == outcome.result.known


def test_another_mistake_in_the_same_cases_is_found(examined):
    outcome = examined([LATE | {"fields": ["num_decodes"]}, EXTRA])
    [finding] = outcome.findings
    assert finding.field == "num_prefills"
    assert outcome.result.verdict == "FAIL"
    assert outcome.deviations[0].fields == ("num_decodes",)


def test_too_narrow_condition_is_found_while_shrinking(examined):
    outcome = examined([LATE, EXTRA | {"when": "T > 2"}], examples=5)
    assert outcome.result.verdict == "FAIL"
    [finding] = outcome.findings
    assert finding.case.batch.query_lens == (2,)
    assert outcome.result.failed >= finding.failed_cases > 0


def test_deviation_without_a_case_is_stale(examined):
    gone = {"id": "D3", "when": "R > 100", "title": "gone"}
    outcome = examined([LATE, EXTRA, gone])
    assert outcome.result.verdict == "DEVIATES"
    stale = outcome.deviations[2]
    assert (stale.id, stale.stale, stale.cases, stale.case) == ("D3", True, 0, None)
    brief = examined([LATE, EXTRA, gone], usual_depth=False)
    assert [deviation.id for deviation in brief.deviations] == ["D1", "D2"]


def test_a_right_candidate_passes_and_its_deviations_are_stale(examined):
    outcome = examined([LATE], name="uninitialised", examples=20)
    assert outcome.result.verdict == "NOT OFFERED"
    assert outcome.deviations == []


def test_crash_can_be_a_known_deviation(examined):
    crash = LATE | {"oracles": ["process"], "when": "any(n > 6 for n in q)"}
    outcome = examined([crash], name="segfaults")
    assert outcome.findings == []
    assert outcome.deviations[0].fields == ("crashes",)
    assert outcome.result.oracles["process"].known == outcome.deviations[0].cases
    assert outcome.deviations[0].case.batch.query_lens == (7,)


def test_condition_that_raises_leaves_the_operation_unverified(examined):
    outcome = examined([EXTRA | {"when": "q[7] == 1"}])
    assert outcome.result.verdict == "UNVERIFIED"
    assert "known deviation D2: when raises IndexError" in outcome.result.reason


def test_known_deviations_are_not_saved_as_failures(examined, tmp_path):
    folder = tmp_path / "examples"
    examined([LATE], examples_db=str(folder))
    assert [path for path in folder.rglob("*") if path.is_file()]
    outcome = examined([LATE, EXTRA], examples_db=str(folder))
    assert outcome.result.verdict == "DEVIATES"
    assert [
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 200
    ] == []
