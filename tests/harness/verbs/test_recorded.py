"""`verify --recorded`: a wrong result of an engine goes to the report, and can be replayed."""

from __future__ import annotations

import json
import sys

import pytest

from attnproof.harness import cli
from attnproof.harness.recorder.schema import MAGIC
from attnproof.harness.running.errors import MISMATCH, USAGE, VERIFIED

SLOTS = "build_slot_mapping"


def tensor(values, dtype="int32"):
    return {"t": dtype, "v": values}


def step(slots):
    cam = {
        "query_start_loc": tensor([0, 1, 3]),
        "query_start_loc_cpu": tensor([0, 1, 3]),
        "seq_lens": tensor([6, 2]),
        "num_reqs": 2,
        "num_actual_tokens": 3,
        "max_query_len": 2,
        "max_seq_len": 6,
        "block_table_tensor": tensor([[7, 3], [5, 0]]),
        "slot_mapping": tensor(slots, "int64"),
        "causal": True,
    }
    return {"builds": [{"block_size": 4, "spec": "FullAttentionSpec", "cam": cam}]}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run `attnproof` in an empty folder; return the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["attnproof", *words])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        return ending.value.code

    return run


def verify(run, recording):
    options = ["--ops", SLOTS, "--candidate", "optimized", "--out", "out", "--no-remember"]
    options += ["--device", "cpu", "--examples", "1", "--steps", "2", "--no-vary", "--jobs", "1"]
    return run("verify", "--recorded", recording, *options)


@pytest.mark.slow
def test_a_wrong_slot_of_an_engine_is_in_every_report_and_its_case_can_be_replayed(
    run, tmp_path, capfd
):
    lines = [json.dumps(step(slots)) for slots in ([13, 20, 21], [14, 20, 21], [13, 20, 21])]
    (tmp_path / "engine.jsonl").write_text("\n".join(lines))
    assert verify(run, "engine.jsonl") == MISMATCH
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    [finding] = summary["findings"]
    assert finding["candidate"] == "engine.jsonl (recorded)"
    assert finding["evidence"] == {"recorded": {"shown": 1, "cases": 3}}
    for name in ("summary.md", "index.html", "junit.xml"):
        assert "1 of 3 recorded batches" in (tmp_path / "out" / name).read_text(), name
    capfd.readouterr()
    case = tmp_path / "out" / finding["case_path"]
    assert run("replay", str(case), "--candidate", "optimized", "--device", "cpu") == VERIFIED
    assert f"PASS {SLOTS} [optimized]" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.attnrec", b"", "--recorded a.attnrec: empty"),
        ("a.attnrec", MAGIC + b" no zstd", "--recorded a.attnrec, frame 1: damaged"),
        ("folder/a.attnrec", b"", "--recorded a.attnrec: holds no whole step"),
    ],
)
def test_a_recording_that_cannot_be_used_is_one_line_and_nothing_is_written(
    run, tmp_path, capfd, name, data, words
):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    assert verify(run, name.partition("/")[0]) == USAGE
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"attnproof: {words}")
    assert not (tmp_path / "out").exists()


def test_a_recording_is_no_case_to_replay(run, tmp_path, capfd):
    (tmp_path / "a.attnrec").write_bytes(MAGIC + b"...")
    assert run("replay", "a.attnrec") == USAGE
    [line] = capfd.readouterr().err.splitlines()
    assert line.endswith("is a recording: `attnproof verify --recorded` runs its batches")
