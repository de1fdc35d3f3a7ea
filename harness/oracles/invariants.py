"""Oracle 2, invariants: what must hold whatever the reference says.

Bug classes: a mistake that reference and candidate share; tokens lost or doubled
(K12), `c != s - q` (K1), a block of another request (K14, K18), mirrors that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from attnproof.harness.model.operation import Call, Outputs, Violation
from attnproof.harness.model.place import place_of
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.equality import agrees
from attnproof.harness.oracles.trial import Trial

NAME = "invariants"
CONTRACT = "what must hold whatever the reference says"


def judge(trial: Trial) -> Iterator[Failure]:
    """One failure for each broken invariant of the operation."""
    if trial.operation.contract.invariants is None:
        return
    for violation in stated(trial, trial.operation.contract.invariants):
        place = place_of(violation.field)
        yield Failure(
            oracle=NAME,
            field=place.root,
            diagnosis=violation.text,
            message=f"{violation.field} {violation.text}",
            place=place,
        )


def stated(
    trial: Trial, statement: Callable[[Call, Outputs], Iterable[Violation]]
) -> list[Violation]:
    """What the statement says of the first call's outputs.

    Outputs of the wrong type cannot be judged; that they are wrong, equality says.
    """
    made = trial.first
    try:
        return list(statement(made.call, made.returned))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        got = made.outputs
        if all(agrees(trial.operation, n, r, got.get(n)) for n, r in trial.expected.items()):
            raise
        return []


def checks(trial: Trial) -> int:
    """One judgement of all the operation's invariants, if it has any."""
    return int(trial.operation.contract.invariants is not None)
