"""A known deviation: a failure that is understood, cites a reference, and does not fail a run."""

from __future__ import annotations

import msgspec


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
    diagnoses: tuple[str, ...] = ()
    """In what words of the report (a pattern with * too), () for any."""
    since: str = ""
    """Day on which it was written down, ISO 8601."""
