"""A known deviation: a failure that is understood, cites a reference, and does not fail a run."""

from __future__ import annotations

import msgspec

from harness.model.case import Case


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a file of known deviations."""

    id: str
    """Such as "E3", or one of the file's own."""
    title: str
    """What the candidate does, in a sentence."""
    operations: tuple[str, ...]
    versions: str
    """Versions of the candidate's package that have it, such as ">=0.10.2,<0.12"."""
    reference: str
    """Where it is written down: a place in SPEC.md, an issue, a commit."""
    when: str
    """The cases that show it: a Python expression over the names that docs/candidates.md lists."""
    oracles: tuple[str, ...] = ()
    """Oracles that may object because of it, () for any."""
    fields: tuple[str, ...] = ()
    """Output fields that it may make wrong (a pattern with * too), () for any."""
    since: str = ""
    """Day on which it was written down, ISO 8601."""


class DeviationResult(msgspec.Struct, kw_only=True):
    """What became of one known deviation in a run, on one operation of one candidate."""

    id: str
    title: str
    reference: str
    since: str
    operation: str
    candidate: str
    version: str
    """Of the candidate's package."""
    cases: int
    """Cases that showed it; 0 means it is stale."""
    oracles: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """Where it showed."""
    case: Case | None = None
    """The smallest case that showed it."""
    case_path: str = ""
    message: str = ""
    """One sentence about that case: what, where, expected and got."""
    command: str = ""
    """The `attnproof replay` line that shows it."""

    @property
    def stale(self) -> bool:
        """Whether it should have occurred and did not."""
        return self.cases == 0
