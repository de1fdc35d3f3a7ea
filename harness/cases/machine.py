"""Base class of the Hypothesis state machines that draw sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

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


def sequence_test(
    machine: type[RuleBasedStateMachine],
    judge: Callable[[Case], None],
    run_seed: int,
    how: settings,
) -> Callable[[], None]:
    """Return the Hypothesis test that draws sequences by a seed and judges them."""
    # Hypothesis hashes the source of a class, though no example is saved: a third of the time.
    factory: Any = partial(type(machine.__name__, (machine,), {"judge": staticmethod(judge)}))
    test = get_state_machine_test(seed(run_seed)(factory), settings=how)
    vars(test)["_hypothesis_internal_database_key"] = b""
    return test
