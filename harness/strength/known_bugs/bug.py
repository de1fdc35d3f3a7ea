"""What is known about a planted bug."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One mistake of the public record, and what the harness must say about it."""

    id: str
    """Such as "K1"."""
    operation: str
    where: str
    """The public thread (repository#number) or erratum."""
    diagnoses: tuple[str, ...]
    """Diagnoses that name it rightly, any one of them at the start of a finding's."""
    requests: int = 3
    """Most requests that a shrunk case may have."""
    tokens: int = 16
    """Most query tokens that a shrunk case may have."""
    steps: int = 6
    """Most steps that a shrunk sequence may have."""
