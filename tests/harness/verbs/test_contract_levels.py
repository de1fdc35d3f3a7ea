"""Contract levels on the command line, and ten functions written as engines write them."""

from __future__ import annotations

import json

import pytest

from tests.harness.conftest import CANDIDATES

PUBLISHED = CANDIDATES / "published_backend.py"
MAKE, FAST = "_make_metadata_with_slice", "make_kv_sharing_fast_prefill_common_attn_metadata"
LOCAL, SLOTS = "make_local_attention_virtual_batches", "build_slot_mapping"
BUGS = {
    ("split_decodes_and_prefills", "zero-length (padded) rows miscounted"): "E2",
    (MAKE, "not rebased"): "E3",
    (MAKE, "moves tokens to other positions"): "E3",  # of an offset that is not rebased
    (MAKE, "computed tokens of a continued request not advanced"): "E4",
    (MAKE, "lost field"): "E5",
    (MAKE, "shares memory with an input"): "E35",
    (MAKE, "raises AssertionError on good input"): "E37",
    (LOCAL, "zero-length row taken for a real one"): "E7",
    (LOCAL, "raises IndexError on good input"): "E7",
    (SLOTS, "32-bit overflow"): "E45",
    (SLOTS, "raises IndexError on good input"): "E46",
    (SLOTS, "a slot for a position beyond its block-table row"): "E46",
    (SLOTS, "stale entry read"): "E46",  # a position beyond the row is one of the next row
    (FAST, "raises AssertionError on good input"): "E8",
    (FAST, "lost field"): "E20",
    (FAST, "reads a copy to the host before it has arrived"): "E40",
}
"""Erratum of docs/SPEC.md of each finding."""


@pytest.mark.slow
def test_every_finding_of_published_code_is_a_bug_that_engines_meet(attnproof, tmp_path):
    # As few cases as a run of all operations draws, each judged by all oracles.
    few = ("--seed", 1, "--examples", 36, "--steps", 9)
    options = (*few, "--no-remember", "--out", "o", "--candidate", PUBLISHED)
    done = attnproof("verify", *options, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    run = json.loads((tmp_path / "o" / "summary.json").read_text(encoding="utf-8"))
    found = {(one["operation"], one["diagnosis"]) for one in run["findings"]}
    assert found <= set(BUGS)
    assert {BUGS[one] for one in found} == set(BUGS.values())
    assert {one["kind"] for one in run["findings"]} == {"wrong-result", "unsafe"}
    assert not any(one["unreal"] for one in run["findings"])
    assert {one["kind"] for one in run["advice"]} == {"contract", "type"}
    # An invariant may object to a field beside the wrong one: to that of one function only.
    sliced = [
        one for one in run["findings"] if one["operation"] == MAKE and one["oracle"] != "invariants"
    ]
    assert all(one["also"] == ["split_attn_metadata"] for one in sliced)
    assert "batch_sequence" in run["reason"]  # the functions that it calls have failed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--contract", "loose"), "--contract is 'loose': expected engine or strict"),
        (("--fail-on", "wrong"), "--fail-on names 'wrong': expected classes of wrong-result,"),
        (("--fail-on", "unsafe,"), "--fail-on names ''"),
    ],
)
@pytest.mark.parametrize("verb", ["verify", "replay"])
def test_an_unknown_contract_or_class_is_refused(attnproof, tmp_path, verb, options, words):
    case = tmp_path / "case.json"
    content = {"operation": "is_block_tables_empty", "params": {"block_tables": None}}
    case.write_text(json.dumps({"schema": "attnproof.case/1", "case": content}))
    given = (case,) if verb == "replay" else ("--ops", "is_block_tables_empty", "--out", "o")
    done = attnproof(verb, *given, "--candidate", "reference", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "o").exists()


ADVISED = """
from attnproof.reference import slice_query_start_locs as right
def slice_query_start_locs(query_start_loc, request_slice):
    try:
        return right(query_start_loc, request_slice)
    except ValueError:
        return query_start_loc
"""


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 0),
        (("--contract", "strict"), 1),
        (("--fail-on", "contract"), 1),
        (("--fail-on", "wrong-result,unsafe,type"), 0),
    ],
)
def test_advice_fails_no_candidate(attnproof, tmp_path, options, status):
    (tmp_path / "mine.py").write_text(ADVISED, encoding="utf-8")
    quick = ("--ops", "slice_query_start_locs", "--examples", 20, "--steps", 0, "--no-remember")
    run = attnproof(
        "verify", *quick, "--out", "o", "--candidate", "mine.py", *options, cwd=tmp_path
    )
    assert run.returncode == status, run.stdout + run.stderr
    assert ("accepts malformed input" if status else "ADVICE 1 contract") in run.stdout
    summary = json.loads((tmp_path / "o" / "summary.json").read_text(encoding="utf-8"))
    [listed] = summary["findings" if status else "advice"]
    assert listed["kind"] == "contract"
    words = listed["command"].split()[1:]
    again = attnproof(*words, cwd=tmp_path)
    assert again.returncode == 1  # the command asks for the contract that fails it
