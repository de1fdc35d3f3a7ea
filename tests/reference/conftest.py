"""The maker of metadata, as a fixture: test folders are not packages."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("builders", Path(__file__).parent / "builders.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


@pytest.fixture
def make_metadata():
    """Metadata from plain lists."""
    return _module.make_metadata


@pytest.fixture(params=["attnproof.reference", "attnproof.optimized"])
def package(request):
    """Both packages: what SPEC.md says literally holds for each."""
    return importlib.import_module(request.param)
