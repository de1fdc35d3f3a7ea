"""Checks of input that every implementation runs before it writes anything (SPEC.md rule 0.6)."""

from .validation import validate

__all__ = ["validate"]
