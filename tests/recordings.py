"""Recordings of live engines, which lie beside the checkout and are used in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("ATTNPROOF_RECORDED") or _CHECKOUT.parent / "shared" / "recorded")
NAMES = sorted(path.name for path in FOLDER.glob("*.jsonl.gz"))


def recording(name: str) -> Path:
    """Return the file of a recording; skip the test where it is absent."""
    path = FOLDER / f"{name}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no recording {name}: set ATTNPROOF_RECORDED")
    return path
