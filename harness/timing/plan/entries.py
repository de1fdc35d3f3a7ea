"""What is to be timed, and the messages between the process that asks and the one that times."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.timing import Costs, Workload

RAISED = "raised "
"""How the reason begins for which a candidate that raised an error has no time."""


@dataclass(frozen=True)
class Entry:
    """One case of one operation, and the candidates that are timed on it."""

    operation: Operation
    workload: Workload
    case: Case
    names: tuple[str, ...]


@dataclass(frozen=True)
class StepEntry:
    """One engine step: the cases of its operations, in order."""

    trace: str
    workload: Workload
    cases: tuple[tuple[Operation, Case], ...]
    names: tuple[str, ...]


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """What the parent wants: entry number `place` of `names`, or the first against itself."""

    place: int
    names: tuple[str, ...]
    budget: tuple[float, int, int]
    """Seconds, least and most rounds."""
    itself: bool = False


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """What one candidate took."""

    name: str
    calls: int
    host_ns: list[float]
    device_ns: list[float]
    costs: Costs | None = None


class Measured(msgspec.Struct, frozen=True, tag=True):
    """The samples of a group, and what went wrong with those that have none, by name."""

    samples: list[Sample]
    wrong: dict[str, str] = {}
    control_ns: float = 0.0
    together: bool = True
    """Whether the samples are of the same rounds; not so where some were timed alone."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """Nothing can be timed here: the clock, or a candidate that cannot be imported."""

    reason: str


Reply = Measured | Broken
