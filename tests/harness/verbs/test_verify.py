"""`verify`: files of a run, saved cases, and an earlier report that an interrupt keeps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jsonschema
import msgspec
import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.report.formats.schema import SCHEMA_PATH
from attnproof.harness.running.cases import CaseFile, write_case
from attnproof.harness.running.errors import INCOMPLETE, MISMATCH, VERIFIED, UsageError
from attnproof.harness.verbs.options import ReplayOptions, VerifyOptions
from attnproof.harness.verbs.replay import replay
from attnproof.harness.verbs.verify import verify

CANDIDATES = Path(__file__).parents[1] / "candidates"
TWO_BUGS = str(CANDIDATES / "two_bugs.py")
QUICK = {
    "ops": "is_block_tables_empty,split_decodes_and_prefills",
    "candidates": ["reference"],
    "examples": 20,
    "steps": 6,
    "seed": 1,
    "jobs": 2,
    "vary": False,
}
FILES = {
    "results.jsonl",
    "cases.jsonl.xz",
    "summary.json",
    "index.html",
    "junit.xml",
    "results.sarif",
    "summary.md",
    "cases",
}


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(**changes):
        return VerifyOptions(**QUICK | {"out": tmp_path / "out"} | changes)

    return make


@pytest.fixture(scope="module")
def failed_once(tmp_path_factory):
    """Verify a candidate with two mistakes; return the folder of the run, and its exit code."""
    folder = tmp_path_factory.mktemp("failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = QUICK | {"candidates": [TWO_BUGS], "examples": 200, "seed": 4}
        return folder, verify(VerifyOptions(**settings, out=folder / "out"))


@pytest.fixture
def failed(failed_once, tmp_path):
    """Copy what a failing run has left into the folder of this test."""
    shutil.copytree(failed_once[0], tmp_path, dirs_exist_ok=True)


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def results_of(folder):
    lines = (folder / "results.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line) for line in lines]


def test_verified_run_writes_every_file(options, capfd):
    assert verify(options()) == VERIFIED
    out = options().out
    assert {path.name for path in out.iterdir()} == FILES
    summary = summary_of(out)
    jsonschema.validate(summary, json.loads(SCHEMA_PATH.read_text(encoding="utf-8")))
    assert (summary["schema"], summary["verdict"], summary["seed"]) == (
        "attnproof.summary/1",
        "PASS",
        1,
    )
    assert summary["counts"]["cases"] > 60
    printed = capfd.readouterr().out
    assert "PASS: " in printed
    assert str(out / "index.html") in printed


def test_failing_run_saves_its_cases_and_prints_replay_commands(failed_once, capfd):
    folder, code = failed_once
    assert code == MISMATCH
    out = folder / "out"
    summary = summary_of(out)
    assert {finding["field"] for finding in summary["findings"]} == {
        "num_decodes",
        "num_prefill_tokens",
    }
    for finding in summary["findings"]:
        case_path = out / finding["case_path"]
        assert case_path.exists()
        assert str(case_path) in finding["command"]
        by = ReplayOptions(case=str(case_path), candidates=[TWO_BUGS], out=out)
        assert replay(by) == MISMATCH
        shown = capfd.readouterr().out
        assert "expected" in shown
        assert finding["message"] in shown
        assert (
            replay(ReplayOptions(case=str(case_path), candidates=["reference"], out=out))
            == VERIFIED
        )


def test_case_of_the_last_run_is_replayed_by_its_id(options, capfd):
    verify(options())
    traced = next(each for each in results_of(options().out) if each["origin"] == "trace")
    assert traced["verdict"] == "PASS"
    by_id = ReplayOptions(case=traced["id"], candidates=["reference"], out=options().out)
    assert replay(by_id) == VERIFIED
    assert f"case {traced['id']}" in capfd.readouterr().out


def test_same_seed_gives_the_same_cases_and_findings(options):
    summaries, ids = [], []
    for jobs in (1, 2):
        made = options(candidates=[TWO_BUGS], jobs=jobs, seed=9)
        verify(made)
        summary = summary_of(made.out)
        summaries.append([(f["id"], f["case_id"], f["diagnosis"]) for f in summary["findings"]])
        # The second run also tries what the first one left in its memory.
        ids.append([each["id"] for each in results_of(made.out) if each["origin"] != "corpus"])
    assert summaries[0] == summaries[1]
    assert ids[0] == ids[1]


def test_failing_cases_are_remembered_until_they_pass(failed, options):
    origins = _origins_of_second_run(options(candidates=[TWO_BUGS], examples=1, steps=0, seed=77))
    assert origins.get("corpus", 0) >= 1


def _origins_of_second_run(made):
    verify(made)
    return Counter(result["origin"] for result in results_of(made.out))


def test_corpus_of_an_earlier_run_is_run_again(failed, options, tmp_path):
    corpus = tmp_path / "corpus"
    (options().out / "cases").rename(corpus)
    assert verify(options(corpus=corpus, remember=False)) == VERIFIED
    assert summary_of(options().out)["settings"]["corpus cases"] == 2


def test_operation_that_is_not_offered_is_incomplete(options):
    made = options(
        ops="build_slot_mapping,split_decodes_and_prefills",
        candidates=[TWO_BUGS],
    )
    verify(made)
    results = {o["name"]: o["verdict"] for o in summary_of(made.out)["operations"]}
    assert results["build_slot_mapping"] == "UNVERIFIED"
    with pytest.raises(UsageError, match="offers none of the operations"):
        verify(options(ops="build_slot_mapping", candidates=[TWO_BUGS]))


def test_gpu_lane_without_a_gpu_is_incomplete(options):
    from attnproof.harness.running.parent.environment import gpu_name

    if gpu_name() is not None:
        pytest.skip("this machine has a GPU")
    assert verify(options(device="cuda", candidates=[])) == INCOMPLETE
    summary = summary_of(options().out)
    assert summary["verdict"] == "INCOMPLETE"
    assert "no CUDA device" in summary["reason"]


def _start(out: Path) -> subprocess.Popen[str]:
    names = "split_decodes_and_prefills,slice_query_start_locs,split_attn_metadata,get_mla_dims"
    command = [sys.executable, "-m", "attnproof", "verify", "--seconds", "2", "--no-remember"]
    command += ["--ops", names, "--jobs", "1"]
    command += ["--candidate", "reference", "--out", str(out), "--steps", "0"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_interrupt_writes_what_was_verified_beside_the_earlier_run(options):
    verify(options())
    out = options().out
    before = summary_of(out)
    process = _start(out)
    assert process.stdout.readline().startswith("PASS"), "the first operation is done"
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == INCOMPLETE, errors
    assert "INCOMPLETE (interrupted)" in printed
    assert "Traceback" not in errors
    assert summary_of(out) == before
    late = summary_of(out / "incomplete")
    assert late["verdict"] == "INCOMPLETE"
    assert late["counts"]["cases"] > 0
    assert late["counts"]["unverified"] > 0
    assert {path.name for path in out.iterdir()} == FILES | {"incomplete"}


def test_cases_of_a_corpus_that_are_not_run_are_named(options, tmp_path, capfd):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, operation in (("a", "is_block_tables_empty"), ("b\n::error::", "get_mla_dims")):
        case = next(case for _, case in ALL[operation].inputs.boundaries())
        write_case(corpus / f"{name}.json", CaseFile(case=case))
    assert verify(options(corpus=corpus, remember=False)) == VERIFIED
    note = (
        "1 of 2 cases of the corpus: their operations are not among those of --ops: "
        "b\\n::error::.json (get_mla_dims)"
    )
    assert note in summary_of(options().out)["notes"]
    assert f"not run: {note}\n" in capfd.readouterr().out
