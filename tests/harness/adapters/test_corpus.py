"""Known deviations of engines: each has a case that shows it, and a line in the engine's page.

These tests need no engine. Where one is installed, `attnproof verify --candidate vllm
--corpus tests/corpus/vllm` checks that the cases fail on it.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

import pytest

from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.verdict import Kind
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.cases import read_corpus
from attnproof.harness.running.releases import TRIED
from attnproof.harness.running.task.conditions import holds
from attnproof.harness.running.task.deviations import load
from attnproof.harness.running.task.workers import Worker

ROOT = Path(__file__).parents[3]
NOT_ALONE = {"E9", "E9 of another word"}
"""Ids whose single call is right in a fresh process: the case is that of a sequence."""


class Engine:
    """An engine's corpus, its known deviations by release, and its page."""

    def __init__(self, name: str, *files: str) -> None:
        self.name, paths = name, [str(ROOT / "harness/adapters" / file) for file in files]
        self.known = {v: [d for path in paths for d in load(path, v)] for v in TRIED[name]}
        every = [d for known in self.known.values() for d in known]
        self.deviations = list({(d.id, d.versions): d for d in every}.values())
        self.cases = {one.source: one.case for one in read_corpus(ROOT / "tests/corpus" / name)}
        self.wanted = {
            f"{d.id.replace(' ', '-')}/{operation}.json": d
            for d in self.deviations
            for operation in d.operations
            if d.id not in NOT_ALONE
        }

    @cached_property
    def page(self) -> str:
        """Text of the engine's page."""
        return (ROOT / "docs" / f"{self.name}.md").read_text(encoding="utf-8")

    def line_of(self, deviation: Deviation) -> str:
        """Return the line of the page's tables that begins with the id."""
        lines = re.findall(rf"^\| {re.escape(deviation.id)} \|.*$", self.page, re.MULTILINE)
        assert len(lines) == 1, deviation.id
        return lines[0]


ENGINES = (
    Engine("vllm", "vllm_deviations.toml", "vllm_triton_deviations.toml"),
    Engine("sglang", "sglang_deviations.toml"),
)
each_case = pytest.mark.parametrize(
    ("engine", "name"),
    [pytest.param(e, name, id=f"{e.name}/{name}") for e in ENGINES for name in sorted(e.cases)],
)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_deviations_and_cases_correspond(engine):
    assert len({d.id for d in engine.deviations}) == len(engine.deviations)
    assert sorted(engine.cases) == sorted(engine.wanted)


@each_case
def test_case_fulfils_the_condition_of_its_deviation(engine, name):
    case, deviation = engine.cases[name], engine.wanted[name]
    assert case.operation == Path(name).stem
    assert not case.fault or case.fault in ALL[case.operation].inputs.faults
    assert holds(deviation.when, case)


@pytest.fixture(scope="module")
def judge():
    """A worker with the reference as candidate."""
    worker = Worker(resolve(["reference"], "cpu")[0], ALL, timeout_s=60, memory_bytes=4 << 30)
    yield worker.judge
    worker.stop()


@each_case
def test_the_reference_is_right_where_the_engine_is_not(engine, name, judge):
    assert judge(engine.cases[name]).failures == ()


@pytest.mark.parametrize(
    ("engine", "deviation"),
    [pytest.param(e, d, id=f"{e.name} {d.id}") for e in ENGINES for d in e.deviations],
)
def test_page_lists_each_deviation_with_its_versions_and_cases(engine, deviation):
    cells = [cell.strip() for cell in engine.line_of(deviation).split("|")]
    _, _, operations, versions, title, evidence, consequence, _ = cells
    assert set(evidence.split("; ")[0].split(", ")) <= set(Kind) or "not shown" in evidence
    linked = re.findall(rf"\]\(\.\./tests/corpus/{engine.name}/([^)]+)\)", operations)
    assert linked == [name for name, known in engine.wanted.items() if known == deviation]
    assert re.findall(r"`(\w+)`", operations) == list(deviation.operations)
    assert versions.split(", ") == [v for v, known in engine.known.items() if deviation in known]
    assert title == deviation.title
    assert consequence
