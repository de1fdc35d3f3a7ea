"""A mutant, and what became of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

Fate = Literal["killed", "timed out", "survived", "equivalent", "not planted"]
"""Fate of a mutant.

"timed out" counts as killed; "equivalent" is a survivor of the reviewed list; "not planted" is a
change that Python does not compile or that has another closure.
"""
KILLED: tuple[Fate, ...] = ("killed", "timed out")


class Mutant(msgspec.Struct, frozen=True):
    """One change of one function of a candidate."""

    file: str
    """Path of the source file."""
    function: str
    """Name of the outermost function, or of class and method, such as "BlockTables.gather"."""
    line: int
    """Line of the change, from 1."""
    operator: str
    """Kind of the change, such as "comparison"."""
    index: int
    """Number of the change among those of the function, from 0."""
    before: str
    """Source of the changed expression or statement."""
    after: str
    """Source of its replacement, "" for a statement that is dropped."""
    lines: tuple[int, int] = (0, 0)
    """First and last line of the statement that is changed, of a default those of the body."""

    @property
    def id(self) -> str:
        """Hash of the change: the same change of the same function keeps it in another checkout."""
        place = "/".join(Path(self.file).parts[-2:])
        key = f"{place}\0{self.function}\0{self.index}\0{self.before}\0{self.after}"
        return hashlib.sha256(key.encode()).hexdigest()[:12]


class Result(msgspec.Struct, frozen=True):
    """The result of one mutant."""

    mutant: Mutant
    operation: str
    """Operation whose cases killed it; of a survivor, the last one that judged it."""
    fate: Fate
    oracle: str = ""
    """Oracle that killed it."""
    cases: int = 0
    """Cases until it was killed; of a survivor, all that run the changed statement."""
    case: str = ""
    """Id of the case that killed it."""
    seconds: float = 0.0
    reason: str = ""
    """Reason of the reviewed list, why it was not planted, or what further cases said."""
    change: str = ""
    """Lines of the function that differ, of a survivor: "- " and the old one, "+ " and the new."""
    made_with: str = ""
    """Hash of the source and of the options that were used."""

    @property
    def key(self) -> str:
        """Mutant, and hash of source and options: a resumed run judges a key once."""
        return f"{self.mutant.id} {self.made_with}"
