"""Fixtures of the tests of `reference`."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from attnproof.optimized.checking import checked

_spec = importlib.util.spec_from_file_location("builders", Path(__file__).parent / "builders.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


@pytest.fixture
def make_metadata():
    """Function that builds metadata from plain lists."""
    return _module.make_metadata


@pytest.fixture(params=["attnproof.reference", "attnproof.optimized"])
def package(request):
    """Each of the two packages: SPEC.md applies to both. `optimized` checks its input."""
    with checked():
        yield importlib.import_module(request.param)
