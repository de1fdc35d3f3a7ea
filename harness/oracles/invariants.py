"""Oracle 2, invariants: the outputs satisfy conditions that need no reference.

Bug classes: a mistake that reference and candidate share; tokens lost or doubled
(K12), `c != s - q` (K1), a block of another request (K14, K18), mirrors that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.place import place_of
from attnproof.harness.model.verdict import Failure
from attnproof.harness.model.violation import Violation
from attnproof.harness.oracles.equality import agrees
from attnproof.harness.oracles.trial import Trial

NAME = "invariants"
CONTRACT = "the outputs satisfy the operation's conditions that need no reference"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each violated invariant of the operation."""
    if trial.operation.contract.invariants is None:
        return
    for violation in violations_of(trial, trial.operation.contract.invariants):
        place = place_of(violation.field)
        yield Failure(
            oracle=NAME,
            field=place.root,
            diagnosis=violation.text,
            message=f"{violation.field} {violation.text}",
            place=place,
            other_kind=violation.kind,
        )


def violations_of(
    trial: Trial, check: Callable[[Call, Outputs], Iterable[Violation]]
) -> list[Violation]:
    """Return the violations that the check finds in the first call's outputs.

    Return none if the check fails on outputs that equality reports as wrong.
    """
    attempt = trial.first
    try:
        return list(check(attempt.call, attempt.returned))
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        # Outputs of another type cannot be checked; with right outputs the check itself is wrong.
        got = attempt.outputs
        if all(agrees(trial.operation, n, r, got.get(n)) for n, r in trial.expected.items()):
            raise
        return []


def checks(trial: Trial) -> int:
    """Return 1 if the operation has invariants, otherwise 0."""
    return int(trial.operation.contract.invariants is not None)
