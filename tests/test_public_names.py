"""Tests that both packages have the same public names and import nothing heavy."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnproof import optimized, reference
from attnproof.harness.operations import ALL
from attnproof.reference import checks, interface, shared

ROOT = Path(__file__).parents[1]


def test_every_public_name_of_reference_is_in_optimized():
    assert sorted(optimized.__all__) == sorted(set(reference.__all__))
    assert all(hasattr(optimized, name) for name in optimized.__all__)


@pytest.mark.parametrize("name", reference.__all__)
def test_public_functions_have_the_same_parameters(name):
    ours, theirs = getattr(optimized, name), getattr(reference, name)
    if inspect.isfunction(theirs):
        assert _parameters(ours) == _parameters(theirs)
    elif name in (*checks.__all__, *interface.__all__, *shared.__all__):
        assert ours is theirs or (ours.__name__ == name and issubclass(ours, theirs))


@pytest.mark.parametrize("name", ALL)
def test_every_operation_is_public_in_both(name):
    for part in ALL[name].call.names(name):
        assert part in reference.__all__
        assert part in optimized.__all__


def test_optimized_loads_neither_numba_nor_triton():
    assert _loaded_by("from attnproof import optimized", "numba", "triton") == ""


def test_the_command_line_loads_nothing_heavy():
    modules = ("torch", "numpy", "numba", "triton", "hypothesis", "jinja2")
    assert _loaded_by("import attnproof.harness.cli", *modules) == ""


def test_modules_are_imported_by_one_name():
    """A module imported as `harness.x` and as `attnproof.harness.x` would be loaded twice."""
    other_names = re.compile(r"^ *(?:from|import) (?:harness|optimized|reference)\b", re.MULTILINE)
    folders = ("harness", "optimized", "reference", "tests", "tools", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    assert [str(p) for p in files if other_names.search(p.read_text(encoding="utf-8"))] == []


def _parameters(function):
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


def _loaded_by(statement, *modules):
    script = f"import sys; {statement}; print(*[m for m in {modules} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()
