"""`attnproof diff`: exit codes, text, JSON and Markdown; `--base` and `--ci` of verify."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnproof import __version__
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.comparison import ComparedRun, RunEnvironment, RunOperation
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.base import check_base
from attnproof.harness.verbs.ci import check_ci
from attnproof.harness.verbs.diff import diff
from attnproof.harness.verbs.options import DiffOptions, VerifyOptions

OPERATION = ALL["build_slot_mapping"]
MINE = Candidate("mine", "mine.py", "cpu", interface="vllm-0.11")


def finding(diagnosis, **changes):
    fields = {
        "id": "1",
        "operation": "build_slot_mapping",
        "candidate": "mine",
        "oracle": "equality",
        "kind": "wrong-result",
        "cause": f"equality/{diagnosis}",
        "diagnosis": diagnosis,
        "message": "result[0] is 1, expected 2",
        "command": "attnproof replay x.json --candidate mine.py",
    }
    return fields | changes


def write_run(folder, *findings, **changes):
    fields = {
        "schema": "attnproof.summary/1",
        "verdict": "FAIL",
        "started": "2025-01-02T03:04:05Z",
        "environment": {"attnproof": "0.1.0", "commit": "abc"},
        "settings": {"examples": 50},
        "operations": [
            {"name": "build_slot_mapping", "candidate": "mine", "device": "cpu", "verdict": "FAIL"}
        ],
        "findings": findings,
        "deviations": [],
    }
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps(fields | changes))
    return folder


@pytest.fixture
def runs(tmp_path):
    """Folders of two runs: one finding of each alone, and one of both."""
    same = finding("off by one block")
    old = write_run(tmp_path / "old", finding("stale entry read"), same)
    return old, write_run(tmp_path / "new", same, finding("32-bit overflow"))


def printed(capsys, old, new, **options):
    code = diff(DiffOptions(old=old, new=new, **options))
    return code, capsys.readouterr().out


def test_new_findings_are_exit_code_1(runs, capsys):
    code, text = printed(capsys, *runs)
    where = "build_slot_mapping [mine] (wrong-result)"
    assert text.splitlines() == [
        f"NEW          {where}: 32-bit overflow",
        "    result[0] is 1, expected 2",
        "    attnproof replay x.json --candidate mine.py",
        f"FIXED        {where}: stale entry read",
        f"SAME         {where}: off by one block",
        "1 new finding, 1 fixed, 1 the same",
    ]
    assert code == 1


def test_no_new_finding_is_exit_code_0(runs, capsys):
    assert printed(capsys, runs[0], runs[0])[0] == 0


def test_a_lost_verdict_is_exit_code_3(runs, tmp_path, capsys):
    fixed = write_run(tmp_path / "fixed", finding("off by one block"), operations=[])
    code, text = printed(capsys, runs[0], fixed)
    assert code == 3
    assert "NOT REPORTED build_slot_mapping [mine] (wrong-result): stale entry read" in text
    assert "LOST VERDICT build_slot_mapping [mine] was FAIL: not part of the run" in text


def test_json(runs, capsys):
    code, text = printed(capsys, *runs, json=True)
    tree = json.loads(text)
    assert (code, tree["schema"], tree["commit"]) == (1, "attnproof.diff/1", "abc")
    found = {key: [one["diagnosis"] for one in tree[key]] for key in ("new", "fixed", "same")}
    assert found == {
        "new": ["32-bit overflow"],
        "fixed": ["stale entry read"],
        "same": ["off by one block"],
    }


def test_markdown(runs, capsys):
    _, text = printed(capsys, *runs, markdown=True)
    assert text.startswith("## attnproof: 1 new finding, 1 fixed, 1 the same\n\n- **new** `build")
    with pytest.raises(UsageError, match="drop one of them"):
        printed(capsys, *runs, markdown=True, json=True)


def test_text_of_a_summary_is_printed_harmlessly(tmp_path, capsys):
    old = write_run(tmp_path / "old")
    new = write_run(tmp_path / "new", finding("\x1b[31m\n::error::x"))
    _, text = printed(capsys, old, new)
    assert "\x1b" not in text
    assert "\n::error" not in text


def test_what_is_no_run_is_usage(runs, attnproof):
    done = attnproof("diff", runs[0], runs[0] / "missing")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"attnproof: {runs[0]}/missing is not a run: name the folder of a report, or its "
        "summary.json"
    ]


def base(**changes):
    fields = {
        "verdict": "PASS",
        "started": "",
        "environment": RunEnvironment(__version__),
        "settings": {"contract": "engine", "interface": "", "examples": 200},
        "operations": [RunOperation(OPERATION.name, "mine", "cpu", "PASS")],
        "findings": [],
        "deviations": [],
    }
    return ComparedRun(**(fields | changes))


def check(run, **options):
    examples = options.get("examples", 200)
    check_base(run, [OPERATION], [MINE], VerifyOptions(base=Path("b"), **options), examples)


def test_a_base_run_like_this_one_is_accepted():
    check(base())
    check(base(settings=base().settings | {"examples": 1000}))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"environment": RunEnvironment("0.0.9")}, {}, "it is of attnproof 0.0.9, this is "),
        ({"settings": {"interrupted": True}}, {}, "it was interrupted"),
        ({}, {"contract": "strict"}, "its contract is engine, here strict"),
        ({}, {"fail_on": "type"}, "its contract is engine, here type"),
        ({}, {"interface": "vllm-0.32"}, "its interface is the default, here vllm-0.32"),
        (
            {"settings": base().settings | {"interfaces": {"mine": "any"}}},
            {},
            "mine had the interface any, here vllm-0.11",
        ),
        ({}, {"examples": 201}, "it drew 200 cases for each operation, this run draws 201"),
        ({"operations": []}, {}, "it did not judge build_slot_mapping of mine"),
        (
            {"operations": [RunOperation(OPERATION.name, "mine", "cuda", "PASS")]},
            {},
            "mine ran on cuda, here on cpu",
        ),
    ],
)
def test_a_base_run_of_another_kind_is_refused(changes, options, message):
    with pytest.raises(UsageError) as refused:
        check(base(**changes), **options)
    assert str(refused.value).startswith(f"--base b: {message}")
    assert str(refused.value).endswith("; make a base run like this one")


def test_an_unknown_ci_system_is_refused():
    with pytest.raises(UsageError, match="--ci is 'jenkins', expected github or gitlab"):
        check_ci("jenkins")


@pytest.mark.parametrize("option", [("--base", "missing"), ("--ci", "jenkins")])
def test_usage_errors_write_nothing(option, attnproof, tmp_path):
    done = attnproof("verify", *option, "--out", tmp_path / "out", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_gitlab_and_a_base_run_from_end_to_end(attnproof, tmp_path):
    source = Path(__file__).parents[3] / "examples" / "wrong_backend.py"
    (tmp_path / "mine.py").write_text(source.read_text())
    words = ["verify", "--candidate", "mine.py", "--examples", "20", "--steps", "0", "--seed", "1"]
    words += ["--no-remember", "--ops", "build_slot_mapping", "--ci", "gitlab"]
    first = attnproof(*words, "--out", "first", cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    (entry,) = json.loads((tmp_path / "first" / "gl-code-quality-report.json").read_text())
    assert entry["check_name"] == "attnproof/equality/wrong-result"
    second = attnproof(*words, "--out", "second", "--base", "first", cwd=tmp_path)
    assert second.returncode == 1, second.stderr
    assert "no new finding, 0 fixed, 1 the same" in second.stdout
    assert attnproof("diff", "first", "second", cwd=tmp_path).returncode == 0
    # Without --ci a later run removes the report of the earlier one.
    attnproof(*words[:-2], "--out", "first", cwd=tmp_path)
    assert not (tmp_path / "first" / "gl-code-quality-report.json").exists()
