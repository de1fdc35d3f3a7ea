"""Violated invariants of an operation's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import Kind


class Violation(NamedTuple):
    """Violated invariant: the field, and what is wrong with it as a verb phrase."""

    field: str | Place
    text: str
    detail: str = ""
    """First place that shows the violation, as a sentence; "" if field and text suffice."""
    kind: Kind | None = None
    """Class of the violation if it is not a wrong result."""


def in_child(violations: Iterable[Violation], child: int) -> Iterator[Violation]:
    """Yield the violations with their fields in one child."""
    return (v._replace(field=Place(str(v.field), child=child)) for v in violations)
