"""Place of an output: its field name, and its child or step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Place(NamedTuple):
    """A field of an operation's outputs, of one of its children, or of one step."""

    field: str
    child: int | None = None
    """Index among several results of one call, such as micro-batches; None for one result."""
    step: int | None = None
    """Index of the step in a sequence, None outside sequences."""

    @property
    def root(self) -> str:
        """Name shared by this field in all children or steps, such as `[].seq_lens`."""
        return self.field if self._index is None else f"[].{self.field}"

    @property
    def _index(self) -> int | None:
        return self.child if self.step is None else self.step

    def __str__(self) -> str:
        return self.field if self._index is None else f"[{self._index}].{self.field}"


def place_of(name: str | Place) -> Place:
    """Return the place of an output given by its field name, or the place itself."""
    return name if isinstance(name, Place) else Place(name)


def of_children(children: Iterable[Mapping[str, Any]]) -> dict[Place, Any]:
    """Return the outputs of several results of one call as one mapping."""
    return {
        Place(field, child=index): value
        for index, outputs in enumerate(children)
        for field, value in outputs.items()
    }


def of_steps(steps: Iterable[Mapping[str, Any]]) -> dict[Place, Any]:
    """Return the outputs of the steps of a sequence as one mapping."""
    return {
        Place(field, step=index): value
        for index, outputs in enumerate(steps)
        for field, value in outputs.items()
    }


def child_outputs(outputs: Mapping[Any, Any], child: int) -> dict[str, Any]:
    """Return the outputs of one child by field."""
    return {place.field: value for place, value in outputs.items() if place.child == child}


def by_step(outputs: Mapping[Any, Any]) -> defaultdict[int, dict[str, Any]]:
    """Return the outputs of each step by field, none of a step that was not reached."""
    steps: defaultdict[int, dict[str, Any]] = defaultdict(dict)
    for place, value in outputs.items():
        steps[place.step][place.field] = value
    return steps


def by_place(outputs: Mapping[Any, Any]) -> dict[Place, Any]:
    """Return the outputs by place; the operation's keys are places or field names."""
    return {place_of(name): value for name, value in outputs.items()}
