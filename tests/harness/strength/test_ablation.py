"""Tests of `tools/ablation.py`, which tells which cases find a mistake that nothing else finds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "ablation.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("ablation", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FINDERS = {
    "one": {"boundary a", "boundary b"},
    "two": {"boundary b", "drawn 1"},
    "three": {"boundary c"},
    "four": set(),
}
SOURCES = ["boundary a", "boundary b", "boundary c", "fault d", "drawn 1"]


def test_a_source_counts_what_it_finds_in_all_and_alone(tool):
    counts = tool.summary(FINDERS, SOURCES)["sources"]
    assert counts["boundary b"] == [2, 0]
    assert counts["boundary c"] == [1, 1]
    assert counts["fault d"] == [0, 0]


def test_a_cover_finds_all_that_its_kind_finds(tool):
    covers = tool.summary(FINDERS, SOURCES)["covers"]
    assert covers == {"boundary": ["boundary b", "boundary c"], "fault": [], "drawn": ["drawn 1"]}


def test_cases_find_shipped_bugs_mutations_and_mutants(tmp_path):
    names = ["infer_global_hyperparameters", "get_dcp_local_seq_lens"]
    file = tmp_path / "found.json"
    command = [sys.executable, TOOL, "--ops", ",".join(names), "--mutants", "4", "--json", file]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [found[name]["mistakes"] for name in names] == [3, 4]
    kinds = {}
    for name in names:
        for mistake, by in found[name]["finders"].items():
            kinds[mistake.split()[0]] = {one.split()[0] for one in by}
    assert all({"boundary", "variation"} <= kinds[kind] for kind in ("mutation", "shipped"))
    assert "boundary" in kinds["mutant"]
