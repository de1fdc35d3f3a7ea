"""The texts of whole runs, beside this file in __snapshots__ for a person to read and judge.

`pytest tests/harness/report --snapshot-update` writes them again.
"""

from __future__ import annotations

import pytest

from attnproof.harness.report.formats.bench_markdown import bench_markdown
from attnproof.harness.report.formats.code_quality import code_quality_bytes
from attnproof.harness.report.formats.github import workflow_commands
from attnproof.harness.report.formats.junit import junit_bytes
from attnproof.harness.report.formats.markdown import run_markdown
from attnproof.harness.report.formats.sarif import sarif_bytes
from attnproof.harness.report.formats.summary import summary_bytes
from tests.harness.report.runs import CHECKOUT

FINDINGS = ("passing", "failing", "since_base", "sequence", "incomplete", "empty", "known")
TIMINGS = ("timed", "slower", "foreign", "on_another_machine", "wrong_when_timed")


@pytest.mark.parametrize("name", ["failing", "known"])
def test_summary_json(name, request, snapshot):
    assert summary_bytes(request.getfixturevalue(name)).decode() == snapshot


@pytest.mark.parametrize("name", FINDINGS + TIMINGS)
def test_summary_md(name, request, snapshot):
    assert run_markdown(request.getfixturevalue(name)) == snapshot


@pytest.mark.parametrize("name", FINDINGS + TIMINGS)
def test_junit_xml(name, request, snapshot):
    assert junit_bytes(request.getfixturevalue(name)).decode() == snapshot


def test_results_sarif(placed, snapshot):
    assert sarif_bytes(placed, CHECKOUT).decode() == snapshot


@pytest.mark.parametrize("name", ["placed", "since_base"])
def test_code_quality_of_gitlab(name, request, snapshot):
    assert code_quality_bytes(request.getfixturevalue(name), CHECKOUT).decode() == snapshot


@pytest.mark.parametrize("name", ["placed", "since_base", "incomplete", "passing"])
def test_annotations_of_github(name, request, snapshot):
    assert workflow_commands(request.getfixturevalue(name), CHECKOUT) == snapshot


@pytest.mark.parametrize("name", ["slower", "on_another_machine"])
def test_bench_md(name, request, snapshot):
    assert bench_markdown(request.getfixturevalue(name)) == snapshot
