"""The comparison of two runs: new, fixed and same findings, lost and gained verdicts."""

from __future__ import annotations

from typing import Any

import msgspec


class RunEnvironment(msgspec.Struct, frozen=True):
    """The software of a run, as far as a comparison shows it."""

    attnproof: str
    commit: str | None = None


class RunOperation(msgspec.Struct, frozen=True):
    """The verdict of a run on one operation of one candidate."""

    name: str
    candidate: str
    device: str
    verdict: str
    reason: str = ""
    causes: tuple[str, ...] = ()
    """Causes that some case showed."""

    @property
    def pair(self) -> tuple[str, str]:
        """Operation and candidate."""
        return self.name, self.candidate

    @property
    def is_judged(self) -> bool:
        """True if the operation has a verdict."""
        return self.verdict not in ("UNVERIFIED", "NOT OFFERED")


class RunFinding(msgspec.Struct, frozen=True):
    """A finding of a run, as far as a comparison needs it."""

    id: str
    operation: str
    candidate: str
    oracle: str
    kind: str
    diagnosis: str
    message: str
    command: str
    cause: str = ""
    """Cause of the finding; "" in a run of an earlier version, which cannot be compared."""

    @property
    def pair(self) -> tuple[str, str]:
        """Operation and candidate."""
        return self.operation, self.candidate


class RunDeviation(msgspec.Struct, frozen=True):
    """A known deviation of a run, as far as a comparison needs it."""

    id: str
    operation: str
    candidate: str
    stale: bool
    oracles: tuple[str, ...]
    kinds: tuple[str, ...]


class ComparedRun(msgspec.Struct, frozen=True):
    """A run, as far as a comparison needs it; decoded from summary.json or made of a `Run`."""

    verdict: str
    started: str
    environment: RunEnvironment
    settings: dict[str, Any]
    operations: list[RunOperation]
    findings: list[RunFinding]
    deviations: list[RunDeviation]


class Vanished(msgspec.Struct, frozen=True):
    """A finding of the older run that the newer one does not report and has not proved fixed."""

    finding: RunFinding
    reason: str


class VerdictChange(msgspec.Struct, frozen=True):
    """An operation of a candidate with a verdict in one of two runs only."""

    operation: str
    candidate: str
    verdict: str
    """Verdict of the run that has one."""
    reason: str
    """Reason why the other run has none."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared. Findings are in the order of the run that reports them."""

    run: str
    """Path of the older run, as it was named."""
    started: str
    """Time at which the older run started, ISO 8601, UTC."""
    commit: str | None
    """Commit of the older run, None if unknown."""
    new: list[RunFinding]
    """Findings of the newer run alone."""
    fixed: list[RunFinding]
    """Findings of the older run alone; the newer run has a verdict on their operations."""
    same: list[RunFinding]
    """Findings of both, as the newer run reports them."""
    vanished: list[Vanished]
    lost: list[VerdictChange]
    """Operations with a verdict in the older run alone."""
    gained: list[VerdictChange]
    """Operations with a verdict in the newer run alone."""
    notes: list[str]
    """Differences of the runs that may be the reason for new or fixed findings."""
