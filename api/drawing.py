"""`attnproof.cases`: cases of an operation, for parametrized tests."""

from __future__ import annotations

import re
import zlib

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded

from attnproof.harness.cases.machine import sequence_test
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.task.fuzz import strategy, without_local_constants
from attnproof.harness.verbs.selection import pick_operations

_MOST_STEPS = 25
"""Maximal number of steps of a drawn sequence."""
_MOST_EXAMPLES = 1_000_000
_NAMES: dict[str, str] = {}
"""Names of the boundary cases so far, by id."""


def cases(
    operation: str, examples: int = 100, seed: int = 0, *, malformed: bool = False
) -> list[Case]:
    """Return the named boundary cases of an operation, then `examples` drawn ones at most.

    Equal arguments give equal cases. Each case occurs once. With `malformed`, boundary cases
    with each fault follow the boundaries, and some of the drawn cases are malformed. The pytest
    plugin names a parameter that is a case by `case_name`. Raise UsageError for an unknown
    operation or a number out of range.
    """
    if not 0 <= examples <= _MOST_EXAMPLES:
        raise UsageError(f"examples is {examples}, expected 0 to {_MOST_EXAMPLES:,}")
    if not operation or any(sign in operation for sign in ",*?["):
        raise UsageError(f"operation is {operation!r}, expected one name, as `attnproof list` has")
    use_operations()
    (chosen,) = pick_operations(operation)
    by_id: dict[str, Case] = {}
    for name, case in chosen.inputs.boundaries():
        by_id.setdefault(case.id, case)
        _NAMES.setdefault(case.id, name)
    if malformed:
        _add_faults(chosen, by_id)
    if examples:
        drawn = _drawn(chosen, examples, seed, malformed=malformed)
        fresh = {case.id: case for case in drawn if case.id not in by_id}
        by_id |= dict(list(fresh.items())[:examples])
    return list(by_id.values())


def case_name(case: Case) -> str:
    """Return a name for tests: that of a boundary case or "drawn", and the case's id."""
    name = _NAMES.get(case.id, "drawn")
    return f"{re.sub('[^A-Za-z0-9]+', '-', name).strip('-')}-{case.id}"


def _add_faults(operation: Operation, by_id: dict[str, Case]) -> None:
    """Add each fault, on the first boundary case that it applies to."""
    for name, fault in operation.inputs.faults_on("cpu").items():
        good = next(
            (case for case in by_id.values() if not case.fault and fault.applies(case)), None
        )
        if good is not None:
            case = Case(good.operation, good.batch, good.params, name)
            by_id.setdefault(case.id, case)
            _NAMES.setdefault(case.id, name)


def _drawn(operation: Operation, examples: int, seed: int, *, malformed: bool) -> list[Case]:
    """Return cases that Hypothesis draws with this seed."""
    drawn: list[Case] = []

    def take(case: Case) -> None:
        drawn.append(case)

    machine = operation.inputs.machine
    how = settings(
        max_examples=examples,
        stateful_step_count=_MOST_STEPS,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    first = zlib.crc32(f"{seed}/{operation.name}".encode())
    with without_local_constants():
        if machine is not None:
            sequence_test(machine, take, first, how)()
        else:
            faults = operation.inputs.faults_on("cpu") if malformed else {}
            seeded(first)(how(given(strategy(operation, faults))(take)))()
    return drawn
