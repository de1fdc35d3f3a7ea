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
MINE = "def build_slot_mapping(*args, **kwargs):\n    raise ValueError\n"


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


def test_a_run_on_a_file_imports_no_package_of_an_extra(forked, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)

    def verify() -> None:
        for extra in extras.EXTRAS.values():
            for package in extra.packages:
                for name in [n for n in sys.modules if n.partition(".")[0] == package]:
                    del sys.modules[name]
                sys.modules[package] = None  # type: ignore[assignment]  # an import of it fails
        sys.argv = ["attnproof", "verify", "--candidate", "mine.py"]
        sys.argv += ["--ops", "build_slot_mapping", "--examples", "5", "--steps", "2"]
        from attnproof.harness.cli import main

        main()

    done = forked(verify, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "raises ValueError" in done.stdout
    assert "Traceback" not in done.stderr
