"""The composite action: its `run:` steps in bash, in the environment that GitHub gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action" / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
RECORDER = """#!/bin/bash
printf '%s\\n' "$@" > "$GITHUB_WORKSPACE/arguments"
"""


def filled(text: str, inputs: dict[str, str]) -> str:
    """Return the text with the expressions of inputs replaced."""
    return re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: inputs[found[1]], text)


def run_step(name: str, workspace: Path, path: Path, **given: str) -> CompletedProcess[str]:
    """Run a step as GitHub does: `bash --noprofile --norc -eo pipefail FILE`."""
    defaults = {key: one.get("default", "") for key, one in ACTION["inputs"].items()}
    inputs = defaults | {key.replace("_", "-"): value for key, value in given.items()}
    step = STEPS[name]
    assert step["shell"] == "bash"
    script = workspace / "step.sh"
    script.write_text(filled(step["run"], inputs))
    files = {key: str(workspace / key) for key in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    environment = {
        **os.environ,
        **files,
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_ACTION_PATH": str(ROOT / "action"),
        **{key: filled(str(value), inputs) for key, value in step["env"].items()},
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
    return subprocess.run(
        command, cwd=workspace, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def recorder(tmp_path):
    """A folder with programs that write down their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("attnproof", "python"):
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    return folder


def recorded(workspace: Path) -> list[str]:
    return (workspace / "arguments").read_text().splitlines()


def test_every_input_is_used_and_no_script_contains_one():
    text = (ROOT / "action" / "action.yml").read_text(encoding="utf-8")
    for name in ACTION["inputs"]:
        assert f"inputs.{name}" in text, name
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")


def test_options_are_made_of_the_inputs(tmp_path, recorder):
    (tmp_path / "old run").mkdir()
    done = run_step(
        "Verify",
        tmp_path,
        recorder,
        candidate="a b.py\nmy.module\n",
        ops="x,y",
        deviations="known.toml",
        base="old run",
        args="--examples 50  --seed 1",
    )
    assert done.returncode == 0, done.stderr
    expected = ["verify", "--ci", "github", "--contract", "engine", "--out", "attnproof-report"]
    expected += ["--candidate", "a b.py", "--candidate", "my.module", "--ops", "x,y"]
    expected += ["--deviations", "known.toml", "--base", "old run"]
    assert recorded(tmp_path) == [*expected, "--examples", "50", "--seed", "1"]


def test_inputs_are_no_code_and_a_missing_base_is_skipped(tmp_path, recorder):
    hostile = "$(touch made); `touch made`"
    done = run_step("Verify", tmp_path, recorder, candidate=hostile, base="missing", contract="a'b")
    assert done.returncode == 0, done.stderr
    assert "::notice title=attnproof::There is no base run yet" in done.stdout
    assert hostile in recorded(tmp_path)
    assert "--base" not in recorded(tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("install", "arguments"),
    [
        ("", ["-m", "pip", "install", str(ROOT / "action" / "..")]),
        ("attnproof[triton] torch", ["-m", "pip", "install", "attnproof[triton]", "torch"]),
        ("none", ["--version"]),
    ],
)
def test_installation(install, arguments, tmp_path, recorder):
    done = run_step("Install attnproof", tmp_path, recorder, install=install)
    assert done.returncode == 0, done.stderr
    assert recorded(tmp_path) == arguments


@pytest.mark.slow
def test_the_action_on_a_wrong_backend(tmp_path):
    shutil.copy(ROOT / "examples" / "wrong_backend.py", tmp_path / "mine.py")
    here = Path(sys.executable).parent
    assert run_step("Install attnproof", tmp_path, here, install="none").returncode == 0
    inputs = {"candidate": "mine.py", "ops": "build_slot_mapping", "base": "attnproof-report"}
    inputs["args"] = "--examples 20 --steps 5 --seed 1 --no-remember"
    first = run_step("Verify", tmp_path, here, **inputs)
    assert first.returncode == 1, first.stdout + first.stderr
    assert "\n::error file=mine.py,line=" in first.stdout
    summary = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert summary.startswith("## ✗ attnproof: FAIL")
    assert "verdict=FAIL\nfindings=1\nnew=1\n" in (tmp_path / "GITHUB_OUTPUT").read_text()
    again = run_step("Verify", tmp_path, here, **inputs)
    assert again.returncode == 1, again.stdout + again.stderr
    assert "no new finding, 0 fixed, 1 the same" in again.stdout
    assert (tmp_path / "GITHUB_OUTPUT").read_text().endswith("new=0\nreport=attnproof-report\n")
    # The line of the summary works without the files of the report.
    (line,) = [line for line in summary.splitlines() if line.startswith("printf %s")]
    replayed = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 1, replayed.stderr
    assert "FAIL build_slot_mapping [mine]: 32-bit overflow" in replayed.stdout
