"""A pair: one public bug, a backend that has it, and one without it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from attnproof import optimized, reference
from attnproof.harness.strength.pairs import engine, engine_slots


class Pair(NamedTuple):
    """One bug that shipped, as code before and after its correction."""

    id: str
    """Public thread, as repository#number."""
    operation: str
    """Operation that is verified."""
    part: str
    """Name of the function or class that had the bug."""
    mistake: str
    """The mistake in one sentence."""
    shown_by: str
    """How the bug was noticed at the time."""
    break_: Callable[[Any], Any]
    """Make the part with the bug; a planter wraps the part without it."""

    @property
    def name(self) -> str:
        """Thread and operation: one thread may concern several operations."""
        return f"{self.id} {self.operation}"

    @property
    def can_alarm(self) -> bool:
        """True unless the part without the bug is the reference's own."""
        return right(self.part) is not getattr(reference, self.part, None)

    @property
    def before(self) -> SimpleNamespace:
        """Backend with the bug."""
        return SimpleNamespace(**{self.part: self.break_(right(self.part))})

    @property
    def after(self) -> SimpleNamespace:
        """Backend without the bug."""
        return SimpleNamespace(**{self.part: right(self.part)})


def right(part: str) -> Any:
    """Return the part without a bug: as an engine writes it, or that of `optimized`."""
    for module in (engine, engine_slots, optimized):
        if part in vars(module):
            return getattr(module, part)
    raise KeyError(part)
