"""The two backends in examples/, judged by the real command line: one passes, one fails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FEW = ("--examples=30", "--no-vary", "--steps=0", "--no-remember", "--seed=1", "--out=out")


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wrong_run(attnproof, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    done = attnproof("verify", "--candidate", EXAMPLES / "wrong_backend.py", *FEW, cwd=folder)
    return folder, done


@pytest.mark.slow
def test_the_correct_backend_passes(attnproof, tmp_path):
    done = attnproof("verify", "--candidate", EXAMPLES / "correct_backend.py", *FEW, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = summary(tmp_path)
    assert run["verdict"] == "PASS"
    assert run["findings"] == []
    verdicts = {item["name"]: item["verdict"] for item in run["operations"]}
    assert {name for name, verdict in verdicts.items() if verdict == "PASS"} == {
        "split_decodes_and_prefills",
        "slice_query_start_locs",
        "_make_metadata_with_slice",
        "split_attn_metadata",
        "build_slot_mapping",
        "batch_sequence",  # with the reference's for the parts that it lacks
    }
    assert set(verdicts.values()) == {"PASS", "NOT OFFERED"}


def test_the_wrong_backend_fails(wrong_run):
    folder, done = wrong_run
    assert done.returncode == 1, done.stdout + done.stderr
    assert summary(folder)["verdict"] == "FAIL"
    assert len(summary(folder)["findings"]) == 4
    assert (folder / "out" / "index.html").exists()


@pytest.mark.parametrize(
    ("operation", "field", "diagnosis", "requests", "tokens"),
    [
        ("split_decodes_and_prefills", "num_decodes", "zero-length (padded) rows", 1, 1),
        ("_make_metadata_with_slice", "num_computed_tokens_cpu[0]", "computed tokens", 1, 2),
        ("build_slot_mapping", "result[0]", "32-bit overflow", 1, 1),
        ("_compute_slot_mapping_numpy", "slot_mapping[34]", "repeats the values", 1, 33),
    ],
)
def test_each_bug_is_one_finding_with_a_small_case(
    wrong_run, operation, field, diagnosis, requests, tokens
):
    folder, _ = wrong_run
    (finding,) = [f for f in summary(folder)["findings"] if f["operation"] == operation]
    assert finding["oracle"] == "equality"
    assert finding["field"] == field
    assert finding["diagnosis"].startswith(diagnosis)
    assert (finding["requests"], finding["tokens"]) == (requests, tokens)


def test_a_finding_replays_by_its_own_command(attnproof, wrong_run):
    folder, _ = wrong_run
    first, *_, last = summary(folder)["findings"]
    for finding in (first, last):
        program, *arguments = finding["command"].split()
        assert program == "attnproof"
        done = attnproof(*arguments, cwd=folder)
        assert done.returncode == 1, done.stdout + done.stderr
        assert finding["diagnosis"] in done.stdout

    fixed = attnproof(*arguments[:2], "--candidate", "reference", cwd=folder)
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr


@pytest.mark.parametrize("name", ["my-plugin", "my_plugin.metadata", "./my_plugin"])
def test_every_way_to_name_a_candidate(attnproof, tmp_path, name):
    """The ways of docs/candidates.md: installed entry point, submodule, folder."""
    package = tmp_path / "my_plugin"
    package.mkdir()
    shutil.copy(EXAMPLES / "correct_backend.py", package / "metadata.py")
    (package / "__init__.py").write_text("from my_plugin.metadata import *\n", encoding="utf-8")
    installed = tmp_path / "my_plugin-1.0.dist-info"
    installed.mkdir()
    metadata = "Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n"
    (installed / "METADATA").write_text(metadata, encoding="utf-8")
    entry_points = "[attnproof.candidates]\nmy-plugin = my_plugin.metadata\n"
    (installed / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    operation = ("--ops", "slice_query_start_locs")
    done = attnproof(
        "verify", "--candidate", name, *operation, *FEW, cwd=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = summary(tmp_path)["operations"]
    assert result["verdict"] == "PASS"
    assert result["cases"] > 30
