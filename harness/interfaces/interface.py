"""An interface: how one engine says a batch, and which operations it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnproof.harness.model.case import Case


def _unchanged(case: Case) -> Case:
    return case


def _function(_name: str, function: Any) -> Any:
    return function


@dataclass(frozen=True, kw_only=True)
class Interface:
    """One engine's classes, fields and signatures (SPEC.md section 9)."""

    name: str
    engine: str
    """The engine and its releases."""
    sections: frozenset[str]
    """Sections of SPEC.md whose operations it has, unless `operations` names them."""
    operations: frozenset[str] = frozenset()
    """Operations of other sections that it has."""
    fit: Callable[[Case], Case] = _unchanged
    """Function from a case to the part of it that the engine can say."""
    adapt: Callable[[str, Any], Any] = _function
    """Function from an operation and an engine's function to one with our arguments and results."""

    def has(self, name: str, section: str) -> bool:
        """True if the engine has the operation."""
        return section in self.sections or name in self.operations
