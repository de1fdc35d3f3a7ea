"""The identity of a finding across runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Identified(Protocol):
    """Fields of a finding that its identity is made of."""

    @property
    def operation(self) -> str:
        """Name of the operation."""

    @property
    def candidate(self) -> str:
        """Name of the candidate."""

    @property
    def oracle(self) -> str:
        """Name of the oracle."""

    @property
    def diagnosis(self) -> str:
        """The mistake in words of the domain."""


class Identity(NamedTuple):
    """Identity of a finding across runs: equal for findings of the same bug."""

    operation: str
    candidate: str
    oracle: str
    diagnosis: str


def identity(finding: Identified) -> Identity:
    """Return the identity of a finding: operation, candidate, oracle and diagnosis.

    Nothing that depends on the drawn cases is part of it: not the case, its values and counts,
    not the field that is wrong first, and not the class, which is that of the most real batch
    that showed the bug. Two findings of one run may have the same identity, such as a narrowed
    dtype in two fields; they count as one. Device and place in the source are no part of it
    either. A bug whose diagnosis changes is a new finding.
    """
    return Identity(finding.operation, finding.candidate, finding.oracle, finding.diagnosis)


def fingerprints(findings: Iterable[Identified]) -> list[str]:
    """Return a hash of each identity and the number of its occurrence, such as "0f…:1"."""
    seen: dict[Identity, int] = {}
    found = []
    for finding in findings:
        key = identity(finding)
        seen[key] = seen.get(key, 0) + 1
        text = "\0".join(key).encode("utf-8", "backslashreplace")
        found.append(f"{hashlib.blake2b(text, digest_size=16).hexdigest()}:{seen[key]}")
    return found


def rule_id(finding: Identified) -> str:
    """Return the name of a kind of mistake, `oracle/diagnosis` in kebab case."""
    return f"{_kebab(finding.oracle)}/{_kebab(finding.diagnosis)}"


def _kebab(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "none"
