"""Places of a candidate's functions: file and line, whatever wraps them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnproof import optimized
from attnproof.harness.running.worker.places import place_of


def plain():
    return None


@lru_cache
def cached():
    return None


@wraps(plain)
def wrapping():
    return plain()


class Made:
    def __init__(self):
        self.value = 1


@dataclass
class Generated:
    value: int = 0

    def method(self):
        return self.value


class Hostile:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Endless:
    def __getattr__(self, name):
        return self


HERE = Path(__file__)
LINES = HERE.read_text(encoding="utf-8").splitlines()


def line(text):
    return LINES.index(text) + 1


@pytest.mark.parametrize(
    ("offered", "text"),
    [
        (plain, "def plain():"),
        (cached, "@lru_cache"),
        (wrapping, "def plain():"),
        (partial(plain), "def plain():"),
        (Made, "    def __init__(self):"),
        (Made().__init__, "    def __init__(self):"),
        (Generated, "    def method(self):"),
    ],
)
def test_file_and_line_of_what_is_offered(offered, text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert place_of(SimpleNamespace(it=offered), ["absent", "it"]) == f"{HERE}:{line(text)}"


def test_a_path_below_the_current_folder_is_relative(monkeypatch):
    monkeypatch.chdir(HERE.parent)
    assert place_of(SimpleNamespace(it=plain), ["it"]) == f"{HERE.name}:{line('def plain():')}"


@pytest.mark.parametrize("make", [lambda: None, lambda: len, lambda: 3, Hostile, Endless])
def test_what_has_no_source_has_no_place(make):
    assert place_of(SimpleNamespace(it=make()), ["it"]) == ""


def test_a_compiled_function_has_the_place_of_its_source():
    assert "slot_mapping.py:" in place_of(optimized, ["build_slot_mapping"])
