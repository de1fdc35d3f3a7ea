"""SARIF, GitHub's workflow commands and GitLab's code-quality report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest

from attnproof.harness.model.inline_case import inline_case
from attnproof.harness.report.formats.code_quality import code_quality_bytes
from attnproof.harness.report.formats.github import step_outputs, workflow_commands
from attnproof.harness.report.formats.sarif import sarif_bytes
from attnproof.harness.report.shared.finding_text import LONGEST_CASE, FindingText
from attnproof.harness.report.shared.source import source_place, source_root
from tests.harness.report.runs import make_finding, make_result, make_run

TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
}
PLACE = {
    "type": "object",
    "required": ["artifactLocation", "region"],
    "properties": {
        "artifactLocation": {
            "type": "object",
            "required": ["uri"],
            "properties": {"uri": {"type": "string", "pattern": "^[^/ ][^ ]*$"}},
        },
        "region": {
            "type": "object",
            "required": ["startLine"],
            "properties": {"startLine": {"type": "integer", "minimum": 1}},
        },
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name", "rules"],
                                "properties": {
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id"],
                                            "properties": {"shortDescription": TEXT},
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "required": ["ruleId", "message", "locations", "partialFingerprints"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT,
                                "baselineState": {
                                    "enum": ["new", "unchanged", "updated", "absent"]
                                },
                                "partialFingerprints": {"additionalProperties": {"type": "string"}},
                                "locations": {
                                    "type": "array",
                                    "items": {"properties": {"physicalLocation": PLACE}},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The parts of the schema of SARIF 2.1.0 that these files use."""


@pytest.fixture
def placed(tmp_path):
    """A run with a finding in a file of the root, an equal one elsewhere, and advice."""
    findings = [
        make_finding(1, function=f"{tmp_path}/pkg/my file.py:12"),
        make_finding(2, function="/usr/lib/site-packages/vllm/utils.py:7"),
    ]
    advice = make_finding(3, diagnosis="narrowed dtype", kind="type", function="<string>:1")
    operations = [make_result("build_slot_mapping", "FAIL")]
    return make_run("FAIL", operations, findings=findings, advice=[advice])


@pytest.mark.parametrize("name", ["placed", "passing", "failing", "sequence", "since_base"])
def test_sarif_has_the_required_parts(name, request, tmp_path):
    run = request.getfixturevalue(name)
    document = json.loads(sarif_bytes(run, tmp_path))
    jsonschema.Draft202012Validator.check_schema(SARIF)
    jsonschema.validate(document, SARIF, cls=jsonschema.Draft202012Validator)
    (written,) = document["runs"]
    assert len(written["results"]) == len(run.findings) + len(run.advice)
    rules = [rule["id"] for rule in written["tool"]["driver"]["rules"]]
    for result in written["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
    marks = [tuple(one["partialFingerprints"].values()) for one in written["results"]]
    assert len(set(marks)) == len(marks)


def test_sarif_of_a_finding(placed, tmp_path):
    results = json.loads(sarif_bytes(placed, tmp_path))["runs"][0]["results"]
    first, second, advice = results
    assert first["ruleId"] == second["ruleId"] == "equality/wrong-result"
    assert (first["level"], advice["level"]) == ("error", "note")
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "pkg/my%20file.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 12},
    }
    outside = second["locations"][0]["physicalLocation"]["artifactLocation"]
    assert outside == {"uri": "vllm/utils.py"}
    assert inline_case(placed.findings[0].case) in first["message"]["text"]
    assert first["properties"]["replay"] == placed.findings[0].command
    assert first["properties"]["case"]["operation"] == "build_slot_mapping"
    assert "baselineState" not in first


def test_sarif_names_what_is_new(since_base, tmp_path):
    results = json.loads(sarif_bytes(since_base, tmp_path))["runs"][0]["results"]
    assert [one["baselineState"] for one in results] == ["new", "unchanged", "unchanged"]


def test_annotations_at_the_function(placed, tmp_path):
    first, second, advice = workflow_commands(placed, tmp_path)
    title = "title=build_slot_mapping of optimized%3A off by one block"
    assert first.startswith(f"::error file=pkg/my file.py,line=12,{title}::slot_mapping[3] is 88")
    assert second.startswith(f"::error {title}::")
    assert advice.startswith("::warning title=")
    assert f"%0Aprintf %25s '{inline_case(placed.findings[0].case)}' | attnproof replay -" in first


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


def test_an_incomplete_run_is_an_error(incomplete, passing, tmp_path):
    (line,) = workflow_commands(incomplete, tmp_path)
    assert line == (
        "::error title=attnproof INCOMPLETE::time ran out before 1 operation was checked"
    )
    assert workflow_commands(passing, tmp_path) == []


def test_step_outputs(since_base, passing):
    lines = "verdict=FAIL\nfindings=3\nnew=1\nreport=my folder\n"
    assert step_outputs(since_base, Path("my folder")) == lines
    assert step_outputs(passing, Path("a\nnew=9")).splitlines()[-1] == "report=a\\nnew=9"


def test_code_quality_of_gitlab(placed, tmp_path):
    entries = json.loads(code_quality_bytes(placed, tmp_path))
    assert [set(entry) for entry in entries] == 3 * [
        {"description", "check_name", "fingerprint", "severity", "location"}
    ]
    assert [entry["severity"] for entry in entries] == ["critical", "critical", "info"]
    assert len({entry["fingerprint"] for entry in entries}) == 3
    assert entries[0]["location"] == {"path": "pkg/my file.py", "lines": {"begin": 12}}
    assert entries[1]["location"]["path"] == "vllm/utils.py"
    assert entries[0]["check_name"] == "attnproof/equality/wrong-result"
    assert "| attnproof replay - --candidate optimized" in entries[0]["description"]


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
