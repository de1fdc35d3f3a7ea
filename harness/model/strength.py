"""Measured strength of the checks: mutants that cases kill, and bugs that shipped."""

from __future__ import annotations

import msgspec


class Survivor(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the candidate that no case noticed."""

    operation: str
    function: str
    place: str
    """Name of the file and line, such as "slot_mapping.py:41"."""
    operator: str
    """Kind of the change, such as "comparison"."""
    change: str
    """Lines of the function that differ: "- " and the old one, "+ " and the new."""
    cases: int
    """Cases that ran on it."""
    reason: str
    """What further cases said, "" if none ran."""


class OperationScore(msgspec.Struct, frozen=True, kw_only=True):
    """Mutants of the functions that one operation calls."""

    operation: str
    killed: int
    timed_out: int
    survived: int
    equivalent: int
    """Survivors of the reviewed list."""
    oracles: dict[str, int]
    """Killed mutants by oracle, those that timed out too."""

    @property
    def score(self) -> float | None:
        """Share of killed mutants, those that timed out too; None if none counts."""
        killed = self.killed + self.timed_out
        return killed / (killed + self.survived) if killed + self.survived else None


class MutationScore(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `attnproof mutants`."""

    path: str
    """File that it was read from."""
    candidate: str
    score: float
    """Killed / (killed + survived); a mutant is killed if any operation kills it."""
    operations: list[OperationScore]
    survivors: list[Survivor]


class KnownBug(msgspec.Struct, frozen=True, kw_only=True):
    """A bug that shipped, and the runs on a backend with it."""

    thread: str
    """Such as "vllm-project/vllm#53982"."""
    operation: str
    mistake: str
    shown_by: str
    """How it was noticed at the time."""
    runs: int
    found: int
    """Runs with a finding."""
    oracles: tuple[str, ...]
    """Oracles that found it."""
    requests: int
    """Requests of the smallest case, 0 if it was not found."""
    tokens: int
    seconds: float
    """Duration of the longest run."""


class Recall(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `attnproof strength`."""

    path: str
    bugs: list[KnownBug]
    correct: int
    """Runs on a backend without the bug."""
    alarms: int
    """Those of them with a finding."""

    @property
    def runs(self) -> int:
        """Runs on a backend with a bug."""
        return sum(bug.runs for bug in self.bugs)

    @property
    def found(self) -> int:
        """Those of them with a finding."""
        return sum(bug.found for bug in self.bugs)


class Strength(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the strength of the checks."""

    mutants: MutationScore | None = None
    recall: Recall | None = None
