"""Meaning of each diagnosis: `diagnoses.toml` has the texts."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from attnproof.harness.backports import tomllib


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The meaning of some diagnoses."""

    id: str
    """Anchor on the page."""
    title: str
    kind: Literal["bug", "contract", "look"]
    """"look" if the finding's class decides."""
    diagnoses: tuple[str, ...]
    """Texts of the diagnoses, with `*` for any characters."""
    means: str
    """Meaning of the diagnosis, in sentences."""
    do: str
    """Advice to the author of the backend, in sentences."""
    oracles: tuple[str, ...] = ()
    """Oracles whose other diagnoses have this entry too."""


def _read() -> tuple[Entry, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["entry"], tuple[Entry, ...])


ENTRIES = _read()


@cache
def entry_of(diagnosis: str, oracle: str = "") -> Entry | None:
    """Return the first entry that fits the diagnosis, None without one."""
    return next((entry for entry in ENTRIES if _fits(entry, diagnosis, oracle)), None)


def _fits(entry: Entry, diagnosis: str, oracle: str) -> bool:
    fits = any(fnmatchcase(diagnosis, pattern) for pattern in entry.diagnoses)
    return fits or oracle in entry.oracles
