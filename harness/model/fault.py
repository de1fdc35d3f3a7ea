"""Faults: ways to malform good input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Case
from attnproof.reference.interface import MetadataError


@dataclass(frozen=True)
class Fault:
    """A way to malform good input, and the error that this must raise (SPEC.md rule 0.6)."""

    parameter: str | tuple[str, ...]
    """Parameter that gets another value, or several that change together."""
    change: Callable[..., Any]
    """Function from the old value and the values of `reads` to the malformed value.

    With several parameters it takes all their old values and returns a tuple of new ones.
    """
    field: str = ""
    """Field that the error must name; the parameter if empty."""
    error: type[Exception] = MetadataError
    applies: Callable[[Case], bool] = lambda _: True
    """True if the case can be malformed in this way."""
    cpu_only: bool = False
    """True if the check needs tensors on the CPU: on a device it would synchronise."""
    reads: tuple[str, ...] = ()
    """Further parameters, whose values `change` takes."""
    any_field: bool = False
    """True if the error may name another field, as several are malformed or contradict each other:
    rule 0.6 gives checks no order."""
    any_error: bool = False
    """True if a TypeError and a MetadataError are both right, as several values are malformed."""
    is_real: bool = False
    """True if an engine makes such input, as where pages run out: to accept it is unsafe then."""
    detail: Callable[[], str] = lambda: ""
    """Function to place, old and new value of an altered value, such as "start_idx 0 -> 0.0"; ""
    for others."""

    @property
    def named(self) -> str:
        """Field that the error must name."""
        return self.field or self._parameters[0]

    @property
    def _parameters(self) -> tuple[str, ...]:
        return (self.parameter,) if isinstance(self.parameter, str) else self.parameter

    def malform(self, call: Call) -> None:
        """Replace the parameter's value in the call."""
        changed = self.change(*(call[name] for name in (*self._parameters, *self.reads)))
        values = (changed,) if isinstance(self.parameter, str) else changed
        for name, value in zip(self._parameters, values, strict=True):
            call.replace(name, value)
