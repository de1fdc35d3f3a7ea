"""The identity of a finding across runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from attnproof.harness.model.run import Finding


class Identified(Protocol):
    """Fields of a finding that its identity is made of."""

    @property
    def operation(self) -> str:
        """Name of the operation."""

    @property
    def candidate(self) -> str:
        """Name of the candidate."""

    @property
    def cause(self) -> str:
        """Oracle, place and class of the finding."""


class Identity(NamedTuple):
    """Identity of a finding across runs: equal for findings of the same bug."""

    operation: str
    candidate: str
    cause: str


def identity(finding: Identified) -> Identity:
    """Return the identity of a finding: operation, candidate and what is wrong.

    Nothing that depends on the drawn cases is part of it: not the case, its values and counts,
    and not the diagnosis. Device and place in the source are no part of it either.
    """
    return Identity(finding.operation, finding.candidate, finding.cause)


def fingerprints(findings: Iterable[Identified]) -> list[str]:
    """Return a hash of each identity and the number of its occurrence, such as "0f…:1"."""
    seen: dict[Identity, int] = {}
    hashes = []
    for finding in findings:
        key = identity(finding)
        seen[key] = seen.get(key, 0) + 1
        text = "\0".join(key).encode("utf-8", "backslashreplace")
        hashes.append(f"{hashlib.blake2b(text, digest_size=16).hexdigest()}:{seen[key]}")
    return hashes


def rule_id(finding: Finding) -> str:
    """Return the name of a kind of mistake, `oracle/class` in kebab case."""
    return f"{finding.oracle.replace(' ', '-')}/{finding.kind}"
