"""A candidate that crashes, hangs, allocates too much or prints gives a finding."""

from __future__ import annotations

import msgspec
import pytest

SPLIT = "split_decodes_and_prefills"


@pytest.fixture(scope="module")
def segfaulted(examine_candidate, tmp_path_factory):
    """Return the outcome of a candidate that crashes, and the events of its ledger."""
    ledger = tmp_path_factory.mktemp("segfaulted") / "ledger.jsonl"
    outcome = examine_candidate("segfaults", SPLIT, ledger, examples=207)
    return outcome, [msgspec.json.decode(line) for line in ledger.read_bytes().splitlines()]


def test_segmentation_fault_is_a_finding_with_its_input(segfaulted):
    outcome, _ = segfaulted
    [finding] = outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert finding.diagnosis == "crashes with SIGSEGV"
    assert finding.case.batch.query_lens == (7,)
    assert "Segmentation fault" in finding.log
    assert "segfaults.py" in finding.log


def test_exit_is_a_finding_and_other_cases_are_still_judged(examine_candidate):
    outcome = examine_candidate("exits", SPLIT)
    [finding] = outcome.findings
    assert finding.diagnosis == "ends the process with status 0"
    rows = finding.case.batch.num_requests + finding.case.batch.padded_requests
    assert rows == 5
    assert outcome.result.cases > 60
    assert outcome.result.failed < outcome.result.cases / 2


def test_hang_is_a_finding_after_the_timeout(examine_candidate):
    outcome = examine_candidate("hangs", SPLIT, examples=2, timeout_s=0.5)
    [finding] = outcome.findings
    assert finding.diagnosis == "does not answer within 0.5 s"
    assert finding.case.params["decode_threshold"] == 5
    assert 0 < finding.requests < 9


def test_a_first_call_may_take_longer_as_it_compiles(examine_candidate):
    outcome = examine_candidate("compiles", SPLIT, examples=10, timeout_s=1.9)
    assert outcome.findings == []
    assert outcome.result.verdict == "PASS"


def test_an_illegal_device_access_ends_the_worker(examine_candidate):
    outcome = examine_candidate("loses_the_device", SPLIT)
    [finding] = outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert finding.oracle == "process"
    assert finding.diagnosis == (
        "loses the device with CUDA error: an illegal memory access was encountered"
    )
    assert finding.case.params["decode_threshold"] == 5
    assert 0 < finding.requests < 9
    assert "loses_the_device.py" in finding.log
    assert outcome.result.cases > 60


def test_output_is_a_finding(examine_candidate):
    outcome = examine_candidate("prints", SPLIT)
    [finding] = outcome.findings
    assert finding.diagnosis == "writes to standard output"
    assert finding.log == "debugging\n" * 3
    assert finding.case.params["decode_threshold"] == 8


def test_runaway_memory_is_a_finding(examine_candidate):
    outcome = examine_candidate("hoards", SPLIT, examples=20, memory_bytes=1 << 30)
    [finding] = outcome.findings
    assert finding.diagnosis == "raises MemoryError on good input"
    assert finding.case.params["require_uniform"] is True


def test_candidate_that_cannot_be_imported_is_unverified(examine_candidate):
    outcome = examine_candidate("no_such_module_at_all", SPLIT)
    assert outcome.result.verdict == "UNVERIFIED"
    assert "ModuleNotFoundError" in outcome.result.reason


def test_absent_operation_is_not_offered(examine_candidate):
    outcome = examine_candidate("segfaults", "build_slot_mapping")
    assert outcome.result.verdict == "NOT OFFERED"


def test_every_case_is_in_the_ledger_before_its_verdict(segfaulted):
    _, events = segfaulted
    announced: list[str] = []
    for event in events:
        if event["event"] == "case":
            announced.append(event["id"])
        elif event["event"] == "verdict":
            assert event["id"] in announced[-2:]  # the next case may be announced ahead
    fatal = next(e for e in events if e["event"] == "verdict" and e["failures"])
    assert fatal["failures"][0][0] == "process"


@pytest.mark.parametrize("name", ["two_bugs"])
def test_root_causes_are_reported_separately(examine_candidate, name):
    outcome = examine_candidate(name, SPLIT, examples=200)
    assert {finding.field for finding in outcome.findings} == {
        "num_decodes",
        "num_prefill_tokens",
    }


def test_same_seed_same_findings(examine_candidate):
    outcomes = [examine_candidate("two_bugs", SPLIT, seed=3) for _ in range(2)]
    assert outcomes[0].findings == outcomes[1].findings
    results = [msgspec.structs.replace(outcome.result, seconds=0.0) for outcome in outcomes]
    assert results[0] == results[1]
