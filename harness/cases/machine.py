"""Base class of the Hypothesis state machines that draw sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

from attnproof.harness.backports import current_exception
from attnproof.harness.model.case import Case


class Machine(RuleBasedStateMachine):
    """State machine that draws one sequence of steps.

    Each rule adds a step; the complete sequence is judged as one case, so no candidate is
    called while the machine draws. A subclass sets `operation`, calls `step` in every rule
    and keeps only the state that its preconditions need.
    """

    operation: ClassVar[str]
    judge: ClassVar[Callable[[Case], None]]
    """Function that judges the complete sequence and raises the failure to shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.params: dict[str, Any] = {}
        """Other parameters of the case, such as sizes."""

    def step(self, do: str, **values: Any) -> None:
        """Add a step with JSON values."""
        self.steps.append({"do": do, **values})

    def teardown(self) -> None:
        """Judge the sequence."""
        # An exception in flight means that Hypothesis abandoned the sequence half-way.
        if self.steps and current_exception() is None:
            type(self).judge(Case(self.operation, None, self.params | {"steps": self.steps}))
