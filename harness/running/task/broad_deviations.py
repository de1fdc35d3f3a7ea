"""Entries of known deviations that are so broad that they would hide a new bug."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from attnproof.harness.model.case import Case
from attnproof.harness.model.deviation import ANY_OPERATION, Deviation
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.running.shipped import is_shipped_list
from attnproof.harness.running.task.conditions import NAMES, compiled, holds
from attnproof.harness.running.task.deviations import DeviationError, load

_VALUES = ("equality", "sequences")
"""Oracles that compare with the reference: most bugs fail one of them."""
_FEWEST = 5
"""Edge cases below which nothing is said about a condition that has names."""


def broad_entries(names: Iterable[str], operations: Iterable[Operation]) -> list[str]:
    """Return a sentence on each entry that hides any failure of an operation.

    Such an entry limits neither fields nor diagnoses, and its condition holds for all
    well-formed edge cases. `names` are files, and shipped lists, which are not judged. Raise
    DeviationError for a file that hides everything.
    """
    picked = list(operations)
    found: list[str] = []
    for name in dict.fromkeys(names):
        if not is_shipped_list(name):
            found += _broad(name, picked)
    return found


def _broad(path: str, picked: list[Operation]) -> Iterator[str]:
    entries = [entry for entry in load(path, "") if _is_unlimited(entry)]
    everywhere: dict[str, Deviation] = {}
    for entry in entries:
        hidden = {one.name: why for one in picked if (why := _why(entry, one))}
        if not hidden:
            continue
        everywhere |= dict.fromkeys(_named(entry) if len(hidden) == len(picked) else hidden, entry)
        if len(everywhere) == len(ALL) and all(not entry.oracles for entry in everywhere.values()):
            raise DeviationError(
                f"deviations file {path}: entry {entry.id} hides every failure of every "
                "operation: name operations, a condition, fields or diagnoses"
            )
        names = ", ".join(hidden) if len(hidden) <= 3 else f"{len(hidden)} operations"
        yield (
            f"known deviations: entry {entry.id} of {path} hides any failure of {names}: "
            f"{next(iter(hidden.values()))}, and it limits neither fields nor diagnoses"
        )


def _named(entry: Deviation) -> Iterable[str]:
    return ALL if ANY_OPERATION in entry.operations else entry.operations


def _is_unlimited(entry: Deviation) -> bool:
    """True if the entry explains failures of any field with any diagnosis."""
    outputs = all(not one or "*" in one for one in (entry.fields, entry.diagnoses))
    return outputs and (not entry.oracles or any(name in entry.oracles for name in _VALUES))


def _why(entry: Deviation, operation: Operation) -> str:
    """Return why the entry holds for all cases of the operation, "" if it does not."""
    if not entry.covers(operation.name):
        return ""
    names = {node.id for node in ast.walk(compiled(entry.when)) if isinstance(node, ast.Name)}
    if not names & set(NAMES):
        return "it has no condition" if _holds(entry, Case(operation.name)) else ""
    cases = [case for _, case in operation.inputs.boundaries() if not case.fault]
    if len(cases) < _FEWEST or not all(_holds(entry, case) for case in cases):
        return ""
    return f"its condition holds for all {len(cases)} edge cases"


def _holds(entry: Deviation, case: Case) -> bool:
    try:
        return holds(entry.when, case)
    except Exception:  # reported with the case on which it raises
        return False
