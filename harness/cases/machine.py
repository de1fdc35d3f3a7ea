"""What the state machines share: each rule adds a step, the whole sequence is judged at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

from attnproof.harness.model.case import Case


class Machine(RuleBasedStateMachine):
    """Draws one sequence of steps by its rules; no candidate is called before it is complete.

    A subclass names its `operation`, calls `step` in every rule, and keeps of the state
    no more than its preconditions need.
    """

    operation: ClassVar[str]
    judge: ClassVar[Callable[[Case], None]]
    """Called with the sequence as a case; raises what Hypothesis shall shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.params: dict[str, Any] = {}
        """The case's other parameters, such as sizes."""

    def step(self, do: str, **values: Any) -> None:
        """Add a step: JSON values."""
        self.steps.append({"do": do, **values})

    def teardown(self) -> None:
        """Judge the sequence, unless Hypothesis gave it up while it was drawn."""
        if self.steps and sys.exception() is None:
            type(self).judge(Case(self.operation, None, self.params | {"steps": self.steps}))
