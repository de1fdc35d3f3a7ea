"""Entries of known deviations that are so broad that they would hide a new bug."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from attnproof.harness.model.case import Case
from attnproof.harness.model.deviation import ANY_OPERATION, Deviation
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.running.shipped import is_shipped_list
from attnproof.harness.running.task.conditions import NAMES, ConditionError, compiled, holds
from attnproof.harness.running.task.deviations import DeviationError, load

_VALUES = ("equality", "sequences")
"""Oracles that compare with the reference: most bugs fail one of them."""
_FEWEST = 5
"""Edge cases below which nothing is said about a condition."""
_NAMED = 3
"""Most operations that a sentence names."""


def broad_entries(names: Iterable[str], operations: Iterable[Operation]) -> list[str]:
    """Return a sentence on each entry that hides any failure of an operation.

    Such an entry limits neither fields nor diagnoses, and its condition holds for all
    well-formed edge cases. `names` are files, and shipped lists, which are not judged. Raise
    DeviationError for a file that hides everything.
    """
    picked = list(operations)
    sentences: list[str] = []
    for name in dict.fromkeys(names):
        if not is_shipped_list(name):
            sentences += _broad(name, picked)
    return sentences


def _broad(path: str, picked: list[Operation]) -> Iterator[str]:
    for entry in load(path, ""):
        if not _is_unlimited(entry):
            continue
        always = not _names(entry) and _holds(entry, Case(""))
        everywhere = ANY_OPERATION in entry.operations or set(entry.operations) >= set(ALL)
        covered = [operation for operation in picked if entry.covers(operation.name)]
        counts = {operation.name: _count(entry, operation) for operation in covered}
        hidden = [name for name, count in counts.items() if always or count >= _FEWEST]
        whole = len(picked) == len(ALL) and all(counts.values())
        if everywhere and not entry.oracles and (always or whole):
            raise DeviationError(
                f"deviations file {path}: entry {entry.id} hides every failure of every "
                "operation: name operations, a condition, fields or diagnoses"
            )
        if hidden:
            names = ", ".join(hidden) if len(hidden) <= _NAMED else f"{len(hidden)} operations"
            why = "no condition" if always else "a condition that all edge cases meet"
            yield (
                f"known deviations: entry {entry.id} of {path} hides any failure of {names}: it "
                f"has {why}, and limits neither fields nor diagnoses"
            )


def _is_unlimited(entry: Deviation) -> bool:
    """True if the entry explains failures of any field with any diagnosis."""
    outputs = all(not patterns or "*" in patterns for patterns in (entry.fields, entry.diagnoses))
    return outputs and (not entry.oracles or any(name in entry.oracles for name in _VALUES))


def _names(entry: Deviation) -> set[str]:
    """Return the names of the case that the condition uses."""
    names = {node.id for node in ast.walk(compiled(entry.when)) if isinstance(node, ast.Name)}
    return names & set(NAMES)


def _count(entry: Deviation, operation: Operation) -> int:
    """Return the number of well-formed edge cases, 0 if the condition fails on one of them."""
    cases = [case for _, case in operation.inputs.boundaries() if not case.fault]
    return len(cases) if all(_holds(entry, case) for case in cases) else 0


def _holds(entry: Deviation, case: Case) -> bool:
    try:
        return holds(entry.when, case)
    except ConditionError:  # reported with the case on which it raises
        return False
