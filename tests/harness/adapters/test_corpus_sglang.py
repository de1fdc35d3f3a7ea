"""Known deviations of SGLang: each has a case that shows it, and a line in docs/sglang.md.

These tests do not need SGLang. Where it is installed, `attnproof verify --candidate sglang
--corpus tests/corpus/sglang` checks that the cases fail on it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnproof.harness.model.verdict import Kind
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.cases import read_corpus
from attnproof.harness.running.releases import TRIED
from attnproof.harness.running.task.conditions import holds
from attnproof.harness.running.task.deviations import load
from attnproof.harness.running.task.workers import Worker

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "tests" / "corpus" / "sglang"
PAGE = (ROOT / "docs" / "sglang.md").read_text(encoding="utf-8")
KNOWN = {
    version: load(str(ROOT / "harness/adapters/sglang_deviations.toml"), version)
    for version in TRIED["sglang"]
}
DEVIATIONS = {(d.id, d.versions): d for known in KNOWN.values() for d in known}.values()
CASES = {sourced.source: sourced.case for sourced in read_corpus(FOLDER)}


def file_of(name: str, operation: str) -> str:
    return f"{name.replace(' ', '-')}/{operation}.json"


WANTED = {file_of(d.id, operation): d for d in DEVIATIONS for operation in d.operations}


def line_of(name: str) -> str:
    """Return the line of the page's tables that begins with the id."""
    lines = re.findall(rf"^\| {re.escape(name)} \|.*$", PAGE, re.MULTILINE)
    assert len(lines) == 1, name
    return lines[0]


def test_ids_are_unique():
    assert len({d.id for d in DEVIATIONS}) == len(DEVIATIONS)


def test_deviations_and_cases_correspond():
    assert sorted(CASES) == sorted(WANTED)


@pytest.mark.parametrize("name", sorted(CASES))
def test_case_fulfils_the_condition_of_its_deviation(name):
    case, deviation = CASES[name], WANTED[name]
    assert case.operation == Path(name).stem
    assert not case.fault or case.fault in ALL[case.operation].inputs.faults
    assert holds(deviation.when, case)


@pytest.fixture(scope="module")
def judge():
    """A worker with the reference as candidate."""
    worker = Worker(resolve(["reference"], "cpu")[0], ALL, timeout_s=60, memory_bytes=4 << 30)
    yield worker.judge
    worker.stop()


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_reference_is_right_where_sglang_is_not(name, judge):
    assert judge(CASES[name]).failures == ()


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda d: d.id)
def test_page_lists_each_deviation_with_its_versions_and_cases(deviation):
    line = line_of(deviation.id)
    cells = [cell.strip() for cell in line.split("|")]
    _, _, operations, versions, title, evidence, consequence, _ = cells
    assert set(evidence.split("; ")[0].split(", ")) <= set(Kind) or "not shown" in evidence
    linked = re.findall(r"\]\(\.\./tests/corpus/sglang/([^)]+)\)", operations)
    assert linked == [name for name, known in WANTED.items() if known == deviation]
    assert re.findall(r"`(\w+)`", operations) == list(deviation.operations)
    assert versions.split(", ") == [v for v, known in KNOWN.items() if deviation in known]
    assert title == deviation.title
    assert consequence
