"""A mutation: one mistake that can be planted in the place of a function or class."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import getdoc
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from attnproof import reference

Side = Literal["one", "both"]
"""Planted in the candidate alone, or in the candidate and the reference alike."""
SIDES: tuple[Side, ...] = ("one", "both")
Planter = Callable[..., Any]
"""For a function: a wrong function, which takes the right one before its own arguments.

For a class: a function that takes the right class and returns a wrong subclass.
"""


class Mutation(NamedTuple):
    """One mistake, the place to plant it, and the expected findings.

    A mutation is examined on one side: cases are drawn, and those that fail are shrunk. On
    the other side the shrunk cases and the boundary are judged.
    """

    id: str
    """Number in docs/KNOWN_BUGS.md, such as "K1", or the name."""
    operation: str
    """Operation under examination."""
    part: str
    """Name of the function or class that is changed."""
    name: str
    """The mistake in a few words."""
    description: str
    """The mistake in one sentence."""
    wrong: Callable[[Any], Any]
    """Maker of a function or class with the mistake, from the right one."""
    diagnoses: tuple[str, ...]
    """Prefixes of right diagnoses: that of each finding starts with one of them, or its heading
    says what is seen."""
    source: str = ""
    """Public thread (repository#number) or erratum, "" for a mistake that has not shipped."""
    one: tuple[str, ...] = ("equality",)
    """Oracles that object if the candidate alone has the mistake; others may object too."""
    both: tuple[str, ...] | None = None
    """All oracles that object if both sides have it; None if the reference fails with it."""
    examined: Side | Literal[""] = "one"
    """Side of the examination; "" if it takes too long: then only the boundary is judged."""
    examples: int = 36
    """Cases drawn for the examination: as few as a run of all operations draws, more for a mistake
    that few cases show."""
    boundary: str = ""
    """Name of a boundary case, judged on every side without an examination; "" for none."""
    requests: int = 3
    """Most requests of a shrunk case."""
    tokens: int = 16
    """Most query tokens of a shrunk case."""
    steps: int = 6
    """Most steps of a shrunk sequence."""
    strict: str = ""
    """Why only the strict contract finds it, "" if the engine contract does too."""

    @property
    def target(self) -> str:
        """Target of a candidate that has the mistake: this mutation's `candidate`."""
        return f"attnproof.harness.strength.catalogue:{self.name.replace(' ', '_')}.candidate"

    @property
    def candidate(self) -> SimpleNamespace:
        """A candidate's namespace: the reference's part with the mistake, nothing else."""
        return SimpleNamespace(**{self.part: self.wrong(getattr(reference, self.part))})


def mutation(operation: str, id: str = "", **fields: Any) -> Callable[[Planter], Mutation]:  # noqa: A002
    """Decorate a planter as a mutation of the catalogue; `fields` are fields of `Mutation`."""

    def make(plant: Planter) -> Mutation:
        def wrong(right: Any) -> Any:
            return plant(right) if isinstance(right, type) else partial(plant, right)

        name = plant.__name__.replace("_", " ")
        defaults = {"part": operation, "name": name, "description": getdoc(plant) or ""}
        return Mutation(id or name, operation, wrong=wrong, **defaults | fields)

    return make
