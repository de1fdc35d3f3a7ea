"""SARIF, GitHub's workflow commands and GitLab's code-quality report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest

from attnproof.harness.report.formats.github import step_outputs, workflow_commands
from attnproof.harness.report.formats.sarif import sarif_bytes
from attnproof.harness.report.shared.finding_text import LONGEST_CASE, FindingText
from attnproof.harness.report.shared.source import source_place, source_root
from tests.harness.report.runs import CHECKOUT, make_finding, make_result, make_run

SARIF = json.loads(Path(__file__).with_name("sarif.schema.json").read_bytes())
"""The parts of the schema of SARIF 2.1.0 that these files use."""


@pytest.mark.parametrize("name", ["placed", "passing", "failing", "sequence", "since_base"])
def test_sarif_has_the_required_parts(name, request):
    run = request.getfixturevalue(name)
    document = json.loads(sarif_bytes(run, CHECKOUT))
    jsonschema.Draft202012Validator.check_schema(SARIF)
    jsonschema.validate(document, SARIF, cls=jsonschema.Draft202012Validator)
    (written,) = document["runs"]
    assert len(written["results"]) == len(run.findings) + len(run.advice)
    rules = [rule["id"] for rule in written["tool"]["driver"]["rules"]]
    for result in written["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    marks = [tuple(result["partialFingerprints"].values()) for result in written["results"]]
    assert len(set(marks)) == len(marks)


def test_sarif_names_what_is_new(since_base):
    results = json.loads(sarif_bytes(since_base, CHECKOUT))["runs"][0]["results"]
    assert [result["baselineState"] for result in results] == ["new", "unchanged", "unchanged"]


@pytest.mark.parametrize(
    "text", ["a\n::error::b", "a\r\n::stop-commands::x", "%0A::error::b", "\x1b[1m"]
)
def test_no_text_starts_another_command(text, tmp_path):
    hostile = make_finding(message=text, diagnosis=text, expected=text)
    run = make_run("FAIL", [make_result("a", "FAIL")], findings=[hostile])
    (line,) = workflow_commands(run, tmp_path)
    assert line.isprintable()
    properties, _, message = line.removeprefix("::error ").partition("::")
    assert re.fullmatch(r"title=[^:,]*", properties)
    # The runner decodes these; each decoded line must be harmless as well.
    decoded = message.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    assert not any(part.startswith("::") for part in re.split(r"[\r\n]", decoded))


def test_annotations_are_limited(tmp_path):
    findings = [make_finding(number) for number in range(13)]
    run = make_run("FAIL", [make_result("a", "FAIL")], findings=findings, advice=findings[:12])
    lines = workflow_commands(run, tmp_path)
    assert sum(line.startswith("::error") for line in lines) == 10
    assert sum(line.startswith("::warning") for line in lines) == 10
    assert lines[-1].endswith("::3 more findings and 2 more advice: see the step summary")


def test_step_outputs(since_base, passing):
    lines = "verdict=FAIL\nfindings=3\nnew=1\nreport=my folder\n"
    assert step_outputs(since_base, Path("my folder")) == lines
    assert step_outputs(passing, Path("a\nnew=9")).splitlines()[-1] == "report=a\\nnew=9"


def test_a_long_case_is_not_inline():
    from attnproof.harness.model.case import Case

    long = Case("build_slot_mapping", None, {"block_size": [7] * LONGEST_CASE})
    finding = make_finding(case=long)
    assert FindingText(finding).inline_replay() == ""
    short = make_finding(case=msgspec.structs.replace(long, params={"text": "it's"}))
    assert FindingText(short).inline_replay().startswith('printf %s \'{"schema"')
    quoted = msgspec.structs.replace(
        short, command=f"attnproof replay 'my out/{short.case_path}' --candidate a.py"
    )
    assert FindingText(quoted).inline_replay().endswith(" | attnproof replay - --candidate a.py")


def test_the_root_is_that_of_the_ci_system(tmp_path, monkeypatch):
    assert source_root({"GITHUB_WORKSPACE": str(tmp_path)}) == tmp_path
    assert source_root({"CI_PROJECT_DIR": str(tmp_path)}) == tmp_path
    (tmp_path / ".git").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert source_root({}) == tmp_path
    assert source_place("a.py:3", tmp_path) == ("below/a.py", 3, True)
    assert source_place("", tmp_path) is None
    assert source_place("no line", tmp_path) is None
