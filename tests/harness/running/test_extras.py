"""Tests of the extras: declared as told, and everything else runs without them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attnproof.harness.backports import tomllib
from attnproof.harness.running import extras
from attnproof.harness.running.candidates import BUILT_IN, resolve
from attnproof.harness.running.errors import UsageError

ROOT = Path(__file__).parents[3]
MINE = """
def is_block_tables_empty(block_tables):
    return block_tables is None or all(table is None for table in block_tables.values())

def build_slot_mapping(*args, **kwargs):
    raise ValueError

def last_offset(query_start_loc):
    return int(query_start_loc[-1])
"""
OWN = """
from attnproof.define import Offsets, operation

@operation
def first_offset(query_start_loc: Offsets) -> int:
    '''Return the first offset.'''
    return int(query_start_loc[0])
"""


@pytest.fixture
def bare(monkeypatch):
    """A machine without the packages of any extra."""
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)


def declared() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["optional-dependencies"]


def test_the_extras_install_the_packages_that_the_hints_name():
    for extra in extras.EXTRAS.values():
        assert {line.partition(">")[0] for line in declared()[extra.name]} == set(extra.packages)


def test_a_hint_names_the_extra_of_the_package():
    assert extras.install_hint("numba") == 'pip install "attnproof[optimized]"'
    assert extras.install_hint("xformers") == 'pip install "attnproof[xformers]"'
    assert extras.install_hint("torch") == ""


@pytest.mark.parametrize("candidate", BUILT_IN, ids=lambda candidate: candidate.name)
def test_a_built_in_candidate_without_its_packages_names_the_extra(bare, candidate):
    with pytest.raises(UsageError, match=r'not installed: pip install "attnproof\[optimized\]"'):
        resolve([candidate.name], "auto")


def test_a_verification_of_the_built_in_candidates_names_the_extra(bare):
    with pytest.raises(UsageError, match=r"attnproof\[optimized\].*--candidate"):
        resolve([], "auto")


def test_the_reference_and_a_file_need_no_extra(bare, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    names = ["reference", str(tmp_path / "mine.py")]
    assert [candidate.name for candidate in resolve(names, "auto")] == ["reference", "mine"]


@pytest.fixture
def run(forked, tmp_path):
    """Run a command line where an import of a package of an extra fails."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "ops.py").write_text(OWN)

    def command(*arguments):
        def command_line() -> None:
            for package in (name for extra in extras.EXTRAS.values() for name in extra.packages):
                for name in [n for n in sys.modules if n.partition(".")[0] == package]:
                    del sys.modules[name]
                sys.modules[package] = None  # type: ignore[assignment]
            sys.argv = [*arguments]
            if arguments[0] == "pytest":
                sys.exit(pytest.main([*arguments[1:], "-p", "no:cacheprovider"]))
            from attnproof.harness.cli import main

            main()

        return forked(command_line, cwd=tmp_path, COLUMNS="260")

    return command


FEW = ("--candidate", "mine.py", "--ops", "is_block_tables_empty", "--steps", "2")
BENCHMARKS = ("--benchmark-candidate", "mine.py", "--benchmark-candidate", "reference")


def written(value):
    return value if isinstance(value, str) else " ".join(value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "verify"),
        (["--version"], "attnproof 0."),
        (["list"], "build_slot_mapping"),
        (["list", "--markdown"], "build_slot_mapping"),
        (["list", "--operations", "ops.py"], "first_offset"),
        (["list", "first_offset", "--operations", "ops.py"], "optimized-triton  not offered"),
        (["list", "build_slot_mapping"], "optimized-triton  kernels"),
        (["list", "build_slot_mapping", "--candidate", "mine.py"], "mine  offered"),
        (["config"], "candidate"),
        (["doctor"], "verify can run here"),
        (["init", "new.py", "--from", "mine.py:last_offset"], "wrote new.py"),
        (["verify", *FEW, "--examples", "5"], "PASS"),
        (["bench", *FEW, "--seconds", "1"], "of reference"),
        (["mutants", *FEW[:4], "--jobs", "1"], "score"),
    ],
    ids=written,
)
def test_a_command_that_runs_no_candidate_of_ours_needs_no_extra(run, arguments, words):
    done = run("attnproof", *arguments)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "Traceback" not in done.stderr


def test_a_finding_is_written_and_replayed_without_an_extra(run):
    few = ("--ops", "build_slot_mapping", "--examples", "5", "--steps", "2")
    done = run("attnproof", "verify", "--candidate", "mine.py", *few)
    assert done.returncode == 1, done.stderr
    assert "raises ValueError" in done.stdout
    [line] = [line for line in done.stdout.splitlines() if "attnproof replay" in line]
    again = run(*line.split())
    assert again.returncode == 1, again.stderr
    assert "Traceback" not in done.stderr + again.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["verify"], "optimized"),
        (["bench"], "optimized"),
        (["mutants"], "optimized"),
        (["list", "--candidate", "optimized"], "optimized"),
        (["campaign", "--candidate", "mine.py"], "campaign"),
        (["record", "--", "true"], "record"),
    ],
    ids=written,
)
def test_a_command_that_needs_an_extra_names_it_in_one_line(run, arguments, extra):
    done = run("attnproof", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert f'pip install "attnproof[{extra}]"' in line


def test_the_benchmarks_of_pytest_need_no_extra_for_a_candidate_of_ones_own(run):
    chosen = ("-k", "is_block_tables_empty", "--benchmark-max-time=0.01", "-q")
    done = run("pytest", "--benchmark", *BENCHMARKS, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    without = run("pytest", "--benchmark")
    assert without.returncode == pytest.ExitCode.USAGE_ERROR
    assert 'pip install "attnproof[optimized]"' in without.stderr
