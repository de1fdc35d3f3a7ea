"""Addresses of the pages of the documents, which a wheel has in its folder `docs`."""

from __future__ import annotations

import os
from pathlib import Path

import attnproof

_FOLDER = Path(attnproof.__file__).with_name("docs")
_VARIABLE = "ATTNPROOF_DOCS"
"""Variable with the address of a page, such as `https://example.com/attnproof/{page}.html`."""


def page_address(page: str, anchor: str = "") -> str:
    """Return the address of a page, such as `docs/diagnoses.md#overflow` in a checkout."""
    # In a checkout the folder is a link, and its usual name is shorter.
    installed = _FOLDER.is_dir() and not _FOLDER.is_symlink()
    usual = f"{_FOLDER if installed else 'docs'}/{{page}}.md"
    place = os.environ.get(_VARIABLE, "") or usual
    return place.replace("{page}", page) + (f"#{anchor}" if anchor else "")


def is_published() -> bool:
    """True if the documents have an address that a browser can follow."""
    return bool(os.environ.get(_VARIABLE, ""))
