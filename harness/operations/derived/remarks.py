"""Remarks on a definition: what it leaves open, though nothing in it is wrong."""

from __future__ import annotations

from collections import Counter

from attnproof.harness.model.operation import Operation
from attnproof.harness.operations.derived.contract import why_not_joined
from attnproof.harness.operations.derived.params import free_axes
from attnproof.reference.definition.definition import Definition
from attnproof.reference.definition.roles import CUT_AXES, Array, size_of

_OF_BATCH = "; R, T and W are a batch's only beside a role such as SeqLens"


def lone_axes(definition: Definition) -> list[str]:
    """Return a remark on each axis of one array only, beside which there are other arrays.

    A reference may take for granted that its size is that of another axis.
    """
    remarks: list[str] = []
    if definition.place.endswith(".json"):  # its format names every axis, and constraints of them
        return remarks
    for part in (definition, *definition.methods):
        arrays = {a.name: a.declared for a in part.arguments if isinstance(a.declared, Array)}
        declared = [*arrays.values(), *(result.declared for result in part.results)]
        counts = Counter(axis for array in declared for axis in {s.axis for s in array.sizes})
        bounds = [end for a in part.arguments for end in (a.declared.least, a.declared.below)]
        counts.update(size_of(end).axis for end in bounds if end is not None)
        for axis in free_axes(part) if len(arrays) > 1 else ():
            if counts[axis] == 1 and axis not in part.values:
                [name] = [n for n, array in arrays.items() if axis in {s.axis for s in array.sizes}]
                of_batch = _OF_BATCH * (axis in CUT_AXES)
                remarks.append(
                    f"{definition.name}: the axis {axis} is in {name} only, so its size is drawn "
                    f"by itself: give arrays of one size one axis{of_batch}"
                )
    return remarks


def unchecked_independence(definition: Definition, operation: Operation) -> list[str]:
    """Return why independent=True checks nothing; no remark if it does, or is not declared."""
    if operation.contract.relations is not None or not definition.independent:
        return []
    why = why_not_joined(definition, definition.values.keys())
    return [f"{definition.name}: independent=True checks nothing: {why}"]
