"""Fixture for the real traces, which are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def traces() -> Path:
    """Directory of the real traces: $ATTNPROOF_TRACES, or ../shared/traces beside the project."""
    directory = Path(os.environ.get("ATTNPROOF_TRACES") or ROOT.parent / "shared" / "traces")
    if not directory.is_dir():
        pytest.skip(f"no real traces: {directory.name} is not there (set ATTNPROOF_TRACES)")
    return directory
