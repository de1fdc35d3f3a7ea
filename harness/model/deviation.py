"""A known deviation: an expected failure with a reference, which does not fail a run."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.candidate import Lane

ANY_OPERATION = "*"
"""Name in place of an operation's: the entry is for all operations."""


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a file of known deviations."""

    id: str
    """Id from SPEC.md such as "E3", or any other name."""
    title: str
    """Behaviour of the candidate, in a sentence."""
    operations: tuple[str, ...]
    """Operations that show it; "*" for all."""
    versions: str
    """Versions of the candidate's package that have it, such as ">=0.10.2,<0.12"."""
    reference: str
    """Source that documents it: a section of SPEC.md, an issue, a commit."""
    when: str
    """Condition on the case: a Python expression over the names that docs/deviations.md lists."""
    oracles: tuple[str, ...] = ()
    """Oracles that may fail because of it, () for any."""
    fields: tuple[str, ...] = ()
    """Output fields that may be wrong because of it, with * as a wildcard, () for any."""
    diagnoses: tuple[str, ...] = ()
    """Diagnoses of its failures, with * as a wildcard, () for any."""
    lanes: tuple[Lane, ...] = ()
    """Lanes in which the candidate has it, () for all."""
    since: str = ""
    """Day of the entry, ISO 8601."""

    def covers(self, operation: str) -> bool:
        """True if the entry is for the operation."""
        return operation in self.operations or ANY_OPERATION in self.operations
