"""What passes between the driver of a campaign, its machines and its ledger."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import Outcome


class Pair(NamedTuple):
    """Names of an operation and a candidate."""

    operation: str
    candidate: str


class Steps(msgspec.Struct, frozen=True):
    """Engine steps of a task: a part of those of one simulation, which many tasks share."""

    count: int
    """Steps of all parts together."""
    seed: int
    part: int
    parts: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Work for one worker: a task, which draws cases, or the shrinking of failing cases."""

    operation: str
    candidate: Candidate
    settings: Settings
    steps: Steps | None = None
    number: int | None = None
    """Number of the task among those of its pair, from 0; None if the order shrinks."""
    values: tuple[bytes, ...] = ()
    """Failing cases to shrink, as `model.case.encode` writes them."""
    version: str
    """Version of attnproof on the driver's machine."""

    @property
    def pair(self) -> Pair:
        """Names of the operation and the candidate."""
        return Pair(self.operation, self.candidate.name)

    @property
    def name(self) -> str:
        """The order in words."""
        what = "shrinking" if self.number is None else f"task {self.number}"
        return f"{what} of {self.operation} [{self.candidate.name}]"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an order."""

    outcome: Outcome
    passing: tuple[bytes, ...] = ()
    """Values of the order that do not fail alone."""
    seconds: float
    """Seconds of the examination."""
    cpu_s: float = 0.0
    """CPU time of its processes in seconds."""
    machine: str = ""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What an order costs beside its examination."""

    start_s: float = 0.0
    """Seconds until the examiner's process was ready, 0 where it ran already."""
    total_s: float = 0.0
    """Seconds from its submission to its answer."""
    order_bytes: int = 0
    answer_bytes: int = 0
    """Bytes that travelled to the machine and back."""


class LinkRequest(msgspec.Struct, frozen=True):
    """Request to name the findings that follow from other operations' (`root_causes.link`)."""

    operations: list[str]
    candidates: list[Candidate]
    settings: Settings
    outcomes: list[Outcome]


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="campaign"):
    """The first line of a ledger."""

    schema: str
    seed: int
    started: str
    """ISO 8601, UTC."""
    options: dict[str, str]
    """What results depend on: a campaign goes on only with the same."""


class TaskEnded(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """A task that need not run again."""

    pair: Pair
    number: int
    at: float
    """Seconds that the campaign had worked."""
    answer: Answer
    cost: Cost = Cost()


class Shrunk(msgspec.Struct, frozen=True, kw_only=True, tag="shrunk"):
    """Failing cases of a pair that are joined to root causes and shrunk."""

    pair: Pair
    at: float
    answer: Answer
    values: tuple[str, ...]
    """Hashes of the cases (`examples.name_of`)."""


Line = Begun | TaskEnded | Shrunk
"""A line of a ledger."""
