"""A wrong value that earlier calls bring about is a finding that replays with those calls."""

from __future__ import annotations

import json
from functools import cache

import msgspec
import pytest

from attnproof.harness.model.case import decode, encode
from attnproof.harness.operations import ALL
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.errors import MISMATCH, VERIFIED
from attnproof.harness.verbs.options import ReplayOptions
from attnproof.harness.verbs.replay import replay

SPLIT, SLICE = "split_decodes_and_prefills", "slice_query_start_locs"
DEPENDS = "depends on what was called before"
MEMO_BY_SHAPE = """
from attnproof.reference import slice_query_start_locs as right
MEMO = {}

def slice_query_start_locs(query_start_loc, request_slice):
    result = right(query_start_loc, request_slice)
    return MEMO.setdefault((result.shape, query_start_loc.shape), result.clone()).clone()
"""
CACHE_WITHOUT_THE_THRESHOLD = """
from attnproof.reference import split_decodes_and_prefills as right
CACHE = {}

def split_decodes_and_prefills(common_attn_metadata, *args, **kwargs):
    key = tuple(common_attn_metadata.query_start_loc_cpu.tolist())
    return CACHE.setdefault(key, right(common_attn_metadata, *args, **kwargs))
"""
STATEFUL = """
from attnproof.reference import split_decodes_and_prefills as right
STATE = 0

def split_decodes_and_prefills(common_attn_metadata, *args, **kwargs):
    global STATE
    decodes, prefills, *tokens = right(common_attn_metadata, *args, **kwargs)
    wrong = {wrong}
    STATE += {step}
    return (decodes, prefills + wrong, *tokens)
"""
COUNTER = STATEFUL.format(wrong="STATE >= 12", step="1")
EMPTY_ROW = "0 in common_attn_metadata.query_start_loc_cpu.diff().tolist()"
FLAG = STATEFUL.format(wrong="STATE > 0 and decodes > 0", step=EMPTY_ROW)
CANDIDATES = {
    "memo by shape": (SLICE, MEMO_BY_SHAPE),
    "cache with an incomplete key": (SPLIT, CACHE_WITHOUT_THE_THRESHOLD),
    "counter": (SPLIT, COUNTER),
    "flag of an empty row": (SPLIT, FLAG),
}


@pytest.fixture
def replayed(tmp_path):
    """Replay a case file on a candidate; return the exit code."""

    def run(case, candidate):
        path = tmp_path / "case.json"
        path.write_text(json.dumps({"case": msgspec.to_builtins(case)}))
        options = ReplayOptions(
            case=str(path), candidates=[str(candidate)], out=tmp_path, contract="strict"
        )
        return replay(options)

    return run


@pytest.fixture(scope="module")
def examined(examine_candidate, tmp_path_factory):
    """Examine a candidate of this file once; return its path, its failures and the outcome."""

    @cache
    def run(name):
        operation, source = CANDIDATES[name]
        folder = tmp_path_factory.mktemp("earlier")
        (folder / "mine.py").write_text(source)
        saved = str(folder / "examples")
        path = str(folder / "mine.py")
        return path, saved, examine_candidate(path, operation, examples=20, examples_db=saved)

    return run


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_finding_replays_with_the_calls_that_it_needs(examined, replayed, name, capfd):
    path, _, outcome = examined(name)
    assert outcome.result.verdict == "FAIL"
    needing = [finding for finding in outcome.findings if finding.case.before]
    assert needing
    for finding in needing:
        assert finding.diagnosis == DEPENDS
        assert "in the same process" in finding.message
        assert decode(encode(finding.case)) == finding.case
    for finding in outcome.findings:
        assert replayed(finding.case, path) == MISMATCH
    assert replayed(needing[0].case, "reference") == VERIFIED
    assert f"{CANDIDATES[name][0]} [mine]: {DEPENDS}" in capfd.readouterr().out


def test_only_the_calls_that_matter_are_kept(examined):
    _, _, outcome = examined("flag of an empty row")
    needed = [finding.case.before for finding in outcome.findings if finding.case.before]
    assert needed
    for before in needed:
        assert len(before) == 1
        batch = before[0].batch
        assert batch.padded_requests or 0 in batch.query_lens


def test_a_wrong_value_that_shows_once_is_no_finding(examine_candidate, tmp_path):
    flag = tmp_path / "once.flag"
    once = f"STATE == 60 and not __import__('os').path.exists({str(flag)!r})"
    note = f"not open({str(flag)!r}, 'a').close() if STATE == 60 else 1"
    (tmp_path / "mine.py").write_text(STATEFUL.format(wrong=once, step=note))
    outcome = examine_candidate(str(tmp_path / "mine.py"), SPLIT)
    assert outcome.findings == []
    assert outcome.result.verdict == "UNVERIFIED"
    assert outcome.result.reason.startswith("once, not again: ")


def test_a_finding_that_shows_alone_needs_no_call(examine_candidate):
    for finding in examine_candidate("two_bugs", SPLIT).findings:
        assert not finding.case.before
        assert finding.diagnosis != DEPENDS


def test_a_saved_case_runs_after_its_calls(examine_candidate, examined):
    path, folder, first = examined("flag of an empty row")
    needing = {finding.case.id for finding in first.findings if finding.case.before}
    again = examine_candidate(path, SPLIT, examples_db=folder, examples=0, boundaries=False)
    assert set(again.result.origins) == {"corpus"}
    assert needing & {finding.case.id for finding in again.findings}


def test_a_call_before_a_case_is_checked_as_the_case_is():
    case = next(case for _, case in ALL[SPLIT].inputs.boundaries())
    good = msgspec.structs.replace(case, before=(case,))
    assert problem_of(good) == ""
    for earlier, words in (
        (msgspec.structs.replace(case, params={"other": 1}), "unknown field"),
        (msgspec.structs.replace(case, operation=SLICE), "its operation is 'slice_query"),
        (msgspec.structs.replace(case, fault="none such"), "no fault"),
        (good, "names calls before it too"),
    ):
        problem = problem_of(msgspec.structs.replace(case, before=(case, earlier)))
        assert problem.startswith(f"{SPLIT}: in a call before it: ")
        assert words in problem
