"""The condition of a drafted entry: features of the input that hold for all failing cases."""

from __future__ import annotations

from attnproof.harness.model.case import Case
from attnproof.harness.running.task.conditions import ConditionError, holds

_FEATURES = (
    "padded_requests > 0",
    "padded_tokens > 0",
    "0 in q",
    "R > 1",
    "max(q) > 1",
    "max(c) > 0",
    "len(steps) > 1",
    "(max([max(row) for row in blocks if row]) + 1) * B > 2 ** 31",
)
"""Conditions that say that an input has something; a smaller case often lacks it."""


def condition_of(cases: list[Case]) -> str:
    """Return an expression that holds for all cases, as narrow as its features can say.

    It is "not fault" without cases. Flags among the parameters are part of it, other
    parameters are not: their values vary from case to case.
    """
    faults = sorted({case.fault for case in cases})
    parts = [f"fault in {faults!r}" if all(faults) and faults else "not fault"]
    if faults and not all(faults) and any(faults):
        parts = []
    if cases:
        parts += [part for part in [*_FEATURES, *_flags(cases)] if holds_for(part, cases)]
    return " and ".join(parts) or "True"


def _flags(cases: list[Case]) -> list[str]:
    """Return a condition for each true or false parameter of the first case."""
    flags = {name: value for name, value in cases[0].params.items() if isinstance(value, bool)}
    return [
        f"params.get({name!r})" if value else f"not params.get({name!r})"
        for name, value in flags.items()
    ]


def holds_for(condition: str, cases: list[Case]) -> bool:
    """True if the condition holds for all cases."""
    try:
        return all(holds(condition, case) for case in cases)
    except ConditionError:  # such as the maximum of an empty list
        return False
