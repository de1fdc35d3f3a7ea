"""`pytest --benchmark` times the operations, and its files can be compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHOSEN = "is_block_tables_empty and decode"
WRONG_WHEN_TIMED = """
import gc
from attnproof.reference import is_block_tables_empty as right
def is_block_tables_empty(block_tables):
    return right(block_tables) if gc.isenabled() else None
"""
WRONG = "def is_block_tables_empty(block_tables):\n    return block_tables is not None\n"


@pytest.fixture
def pytest_benchmark(tmp_path):
    """Runs the benchmarks of one workload; the finished process."""

    def run(*options, candidate="optimized"):
        command = [sys.executable, "-m", "pytest", "--benchmark", "-q", "-k", CHOSEN]
        command += ["-p", "no:cacheprovider", f"--benchmark-storage=file://{tmp_path}"]
        who = [f"--benchmark-candidate={name}" for name in (candidate, "reference")]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        return subprocess.run(
            [*command, *who, *options],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_two_runs_are_compared_by_the_usual_flags(pytest_benchmark, tmp_path):
    first = pytest_benchmark("--benchmark-save=first")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "2 passed" in first.stdout
    (saved,) = tmp_path.rglob("*_first.json")
    timed = json.loads(saved.read_text(encoding="utf-8"))["benchmarks"]
    assert [one["params"]["name"] for one in timed] == ["reference", "optimized"]
    assert {one["group"] for one in timed} == {"is_block_tables_empty, decode, 8 requests"}
    facts = timed[1]["extra_info"]
    assert facts["against"] == "reference"
    medians = [one["stats"]["median"] for one in timed]
    assert facts["ratio"] == pytest.approx(medians[0] / medians[1])
    assert facts["costs"]["allocations"] == 0
    assert facts["deviations"] == []
    second = pytest_benchmark("--benchmark-compare=0001")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "0001_first" in second.stdout


def test_what_is_wrong_is_not_timed(pytest_benchmark, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG, encoding="utf-8")
    ended = pytest_benchmark(candidate=str(wrong))
    assert ended.returncode == 1
    assert "not timed, as it is wrong" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout


def test_a_wrong_result_of_a_timed_call_fails(pytest_benchmark, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG_WHEN_TIMED, encoding="utf-8")
    ended = pytest_benchmark(candidate=str(wrong))
    assert ended.returncode == 1
    assert "returned another result while it was timed: result is None" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ("nobody_at_all", "--benchmark-candidate: no candidate 'nobody_at_all'"),
        ("optimized-triton", "--benchmark-candidate: the interpreter has no speed"),
    ],
)
def test_who_cannot_be_timed_is_one_line(pytest_benchmark, candidate, words):
    ended = pytest_benchmark(candidate=candidate)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_plain_pytest_leaves_the_benchmarks_alone():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/api"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "test_speed" not in ended.stdout


def test_a_candidate_is_timed_in_any_folder(tmp_path):
    (tmp_path / "mine.py").write_text("from attnproof.reference import is_block_tables_empty\n")
    command = [sys.executable, "-m", "pytest", "--benchmark", "-q", "-k", CHOSEN]
    command += ["--attnproof-candidate", "mine.py", "--benchmark-disable"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr
