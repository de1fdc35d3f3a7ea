"""The cases of a run: a short line for each verdict, and each case once."""

from __future__ import annotations

import lzma
import sys

import msgspec
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.results import CASES, RESULTS, write_results
from attnproof.harness.running.task.deviations import Explained
from attnproof.harness.running.task.ledger import Ledger

SPLIT = "split_decodes_and_prefills"
SMALL, LARGE = (
    Case(SPLIT, make_batch([1] * rows, [9] * rows, 4), {"decode_threshold": 1}) for rows in (2, 900)
)
FAILURE = Failure(
    oracle="equality",
    field="num_decodes",
    diagnosis="off by one",
    message="num_decodes is 1, expected 2",
    expected="2",
    got="1",
)
DEVIATION = Deviation(
    id="D1", title="counts", operations=(SPLIT,), versions="", reference="#1", when="True"
)
PASSED = Explained((), ())
FAILED = Explained((FAILURE,), ())
DEVIATED = Explained((), ((DEVIATION, FAILURE),))


@pytest.fixture
def write(tmp_path):
    """Write the ledgers of (candidate, case, judgement), then their results."""

    def run(*judged):
        ledgers = {}
        for candidate, case, explained in judged:
            path = tmp_path / f"ledger-{candidate}.jsonl"
            ledger = ledgers.get(path) or Ledger(path, case.operation, candidate)
            ledgers[path] = ledger
            ledger.announce(Sourced(case, "trace", "a trace"))
            if explained is not None:
                ledger.settle(case, explained)
        for ledger in ledgers.values():
            ledger.close()
        assert write_results(ledgers, tmp_path) == ""
        results = (tmp_path / RESULTS).read_bytes().splitlines()
        cases = lzma.decompress((tmp_path / CASES).read_bytes()).splitlines()
        return [[msgspec.json.decode(line) for line in lines] for lines in (results, cases)]

    return run


def test_a_case_that_passed_is_a_short_line(write, tmp_path):
    [result], _ = write(("mine", LARGE, PASSED))
    assert result == {
        "id": LARGE.id,
        "operation": SPLIT,
        "candidate": "mine",
        "origin": "trace",
        "verdict": "PASS",
        "source": "a trace",
    }
    assert (tmp_path / RESULTS).stat().st_size < 220


@pytest.mark.parametrize("case", [SMALL, LARGE])
def test_a_case_that_failed_is_there_whole(write, case):
    [result], _ = write(("mine", case, FAILED))
    assert result["verdict"] == "FAIL"
    assert result["failures"] == [["equality", "num_decodes", "off by one"]]
    assert msgspec.convert(result["case"], Case) == case


def test_known_deviations_are_no_failures(write):
    [result], _ = write(("mine", SMALL, DEVIATED))
    assert (result["verdict"], "case" in result, "failures" in result) == ("DEVIATES", False, False)
    assert result["known"] == [["D1", "equality", "num_decodes", "off by one"]]


def test_a_case_without_a_verdict_is_unverified(write):
    [result], _ = write(("mine", SMALL, None))
    assert result["verdict"] == "UNVERIFIED"
    assert msgspec.convert(result["case"], Case) == SMALL


@pytest.mark.parametrize("judged", [(PASSED, FAILED), (FAILED, PASSED)])
def test_a_case_that_is_judged_twice_is_one_line(write, judged):
    [result], cases = write(*(("mine", SMALL, explained) for explained in judged))
    assert result["verdict"] == "FAIL"
    assert msgspec.convert(result["case"], Case) == SMALL
    assert len(cases) == 1


def test_a_case_of_two_candidates_is_kept_once(write):
    results, cases = write(("mine", LARGE, PASSED), ("yours", LARGE, PASSED))
    assert [result["candidate"] for result in results] == ["mine", "yours"]
    assert [line["event"] for line in cases] == ["batch", "case"]


def test_the_line_that_a_killed_task_did_not_complete_is_left_out(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, SPLIT, "mine")
    ledger.announce(Sourced(SMALL, "fuzz"))
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"event":"verdict","id":"cut')
    write_results([path], tmp_path)
    assert msgspec.json.decode((tmp_path / RESULTS).read_bytes())["verdict"] == "UNVERIFIED"


def test_without_lzma_there_are_verdicts_and_a_reason(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lzma", None)
    assert write_results([], tmp_path) == f"{CASES} was not written: no module lzma"
    assert (tmp_path / RESULTS).exists()
    assert not (tmp_path / CASES).exists()
