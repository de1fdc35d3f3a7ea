"""The example database of a campaign: a folder of Hypothesis's, beside the ledger."""

from __future__ import annotations

import hashlib
from pathlib import Path

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.running.task.saved_failures import Failures, key_of

FOLDER = "examples"
"""Name of the database in the campaign's folder."""


def name_of(value: bytes) -> str:
    """Return the hash by which the ledger names a failing case."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def failing_cases(folder: Path, operation: str, candidate: Candidate) -> list[bytes]:
    """Return the failing cases of a pair, smallest first."""
    values = Failures(folder).fetch(key_of(operation, candidate))
    return sorted(values, key=lambda value: (len(value), value))
