"""The check of a case that comes from outside: from a file, a corpus or an earlier run."""

from __future__ import annotations

import msgspec

from attnproof.harness.cases.batches.consistency import batch_problem
from attnproof.harness.cases.variation.altered_calls import fault_of, has_fault
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.shared.params import elements_limited

_MOST_ELEMENTS = 2**20
"""Elements of the tensors of a case that is made by changes: these are many and shall be fast."""


def problem_of_variant(case: Case) -> str:
    """Return why a case that was made by changes cannot be run, or is slow, "" if neither."""
    with elements_limited(_MOST_ELEMENTS):
        return problem_of(case)


def problem_of(case: Case) -> str:
    """Return why the case cannot be run, "" if its names, parameters and batch are valid."""
    operation = ALL.get(case.operation)
    if operation is None:
        return f"no operation {case.operation!r}"
    for earlier in case.before:
        problem = _problem_before(case, earlier)
        if problem:
            return f"{case.operation}: in a call before it: {problem}"
    inputs = operation.inputs
    if case.fault and not has_fault(operation, case.fault):
        return f"{case.operation} has no fault {case.fault!r}"
    try:
        msgspec.convert(case.params, inputs.params)
    except msgspec.ValidationError as error:
        return f"params of {case.operation}: {error}"
    if inputs.has_batch != (case.batch is not None):
        return f"{case.operation} needs {'a' if inputs.has_batch else 'no'} batch"
    if case.batch and case.batch.no_slots and not inputs.any_slots:
        return f"batch.no_slots: {case.operation} needs slots of a cache"
    problem = (batch_problem(case.batch) if case.batch else "") or inputs.problem(case)
    if problem:
        return f"{case.operation}: {problem}"
    if case.fault and not fault_of(operation, case).applies(case):
        return f"{case.operation}: its fault {case.fault!r} does not apply to this case"
    return ""


def _problem_before(case: Case, earlier: Case) -> str:
    if earlier.before:
        return "it names calls before it too"
    if earlier.operation != case.operation:
        return f"its operation is {earlier.operation!r}"
    return problem_of(earlier)
