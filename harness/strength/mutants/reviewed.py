"""The reviewed list: survivors that compute the same, each with the reason."""

from __future__ import annotations

import linecache
from functools import cache
from pathlib import Path

from attnproof.harness.backports import tomllib
from attnproof.harness.strength.mutants.mutant import Mutant

_Key = tuple[str, str, str, str]
"""Function, text of the line, and the source before and after."""
_FILE = Path(__file__).with_name("equivalent.toml")


def reviewed_reason(mutant: Mutant) -> str:
    """Return why the change has no effect, "" if nobody has reviewed it.

    An entry names function, line and changes as `mutants.json` has them: another text of the line
    makes the entry void.
    """
    return _reasons().get(_key(mutant), ("", False))[0]


def needs_judging(mutant: Mutant) -> bool:
    """True if the mutant is not in the list, or if a change that is noticed has the same text."""
    return _reasons().get(_key(mutant), ("", True))[1]


def _key(mutant: Mutant) -> _Key:
    return mutant.function, line_of(mutant), mutant.before, mutant.after


def line_of(mutant: Mutant) -> str:
    """Return the text of the mutant's line."""
    return linecache.getline(mutant.file, mutant.line).strip()


@cache
def not_judged(mutant: Mutant) -> str:
    """Return why mutants of the file or class are left out, "" if they are judged."""
    left_out: dict[str, str] = tomllib.loads(_FILE.read_text(encoding="utf-8"))["not_judged"]
    owner = f"{mutant.file}:{mutant.function.partition('.')[0]}"
    for name, why in left_out.items():
        if owner.endswith(f"/{name}") or mutant.file.endswith(f"/{name}"):
            return why
    return ""


@cache
def _reasons() -> dict[_Key, tuple[str, bool]]:
    """Return reason and `judged` of each change."""
    entries = tomllib.loads(_FILE.read_text(encoding="utf-8")).get("equivalent", [])
    return {
        (row["function"], row["line"], before, after): (row["reason"], row.get("judged", False))
        for row in entries
        for before, after in row["changes"]
    }
