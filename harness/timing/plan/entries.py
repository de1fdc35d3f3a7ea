"""The entries of a benchmark, and the messages between the parent and the timing process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto

import msgspec

from attnproof.harness.backports import StrEnum
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.timing import Costs, Work, Workload


@dataclass(frozen=True)
class Entry:
    """One case of one operation, and the candidates that are timed on it."""

    operation: Operation
    workload: Workload
    case: Case
    names: tuple[str, ...]
    deviating: frozenset[tuple[str, str]] = frozenset()
    """Candidates with a known deviation on the case: name and id of the case."""

    @property
    def label(self) -> str:
        """Name shown while it is timed."""
        return self.operation.name


@dataclass(frozen=True)
class StepEntry:
    """One engine step: the cases of its operations, in order."""

    trace: str
    workload: Workload
    cases: tuple[tuple[Operation, Case], ...]
    names: tuple[str, ...]
    deviating: frozenset[tuple[str, str]] = frozenset()
    """Candidates with a known deviation on one of the cases: name and id of the case."""

    @property
    def label(self) -> str:
        """Name shown while it is timed."""
        return self.trace


class Request(msgspec.Struct, frozen=True, array_like=True):
    """A request to time one entry."""

    index: int
    """Index of the entry."""
    names: tuple[str, ...]
    """Candidates to time."""
    budget: tuple[float, int, int]
    """Seconds, least and most rounds."""
    itself: bool = False
    """True to time the first candidate against itself."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """The times of one candidate."""

    name: str
    calls: int
    host_ns: list[float]
    device_ns: list[float]
    costs: Costs | None = None


class FailureKind(StrEnum):
    """Ways in which a candidate fails while it is timed."""

    RAISED = auto()
    WRONG = auto()
    """The candidate returned another result than the verified one."""
    REMEMBERED = auto()
    """The candidate answers a repeated input from memory."""
    DIED = auto()
    """The candidate crashed or hung, which ended the timing process."""
    GIVEN_UP = auto()
    """The candidate died too often, and is not timed any more."""


class TimingFailure(msgspec.Struct, frozen=True, array_like=True):
    """The reason why a candidate has no time on an entry."""

    kind: FailureKind
    text: str
    operation: str = ""
    """Operation whose result is wrong or remembered, "" for other failures."""


class Measured(msgspec.Struct, frozen=True, tag=True):
    """The samples of a group of candidates on one entry."""

    samples: list[Sample]
    failures: dict[str, TimingFailure] = {}
    """Failures of the other candidates, by name."""
    control_ns: float = 0.0
    """Time of the control afterwards, 0 if the process died."""
    work: Work | None = None
    """Bytes and floating-point operations of the call, None if they are not declared."""
    together: bool = True
    """True if all samples are of the same rounds; False if some candidates were timed alone."""


class Broken(msgspec.Struct, frozen=True, tag=True):
    """Nothing can be timed: the clock is unusable, or a candidate cannot be imported."""

    reason: str


Reply = Measured | Broken
