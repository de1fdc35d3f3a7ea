"""The check of a case that comes from outside: from a file, a corpus or an earlier run."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL


def problem_of(case: Case) -> str:
    """Return why the case cannot be run, "" if its names and parameters are valid."""
    operation = ALL.get(case.operation)
    if operation is None:
        return f"no operation {case.operation!r}"
    if case.fault and case.fault not in operation.inputs.faults:
        return f"{case.operation} has no fault {case.fault!r}"
    if operation.inputs.params is not None:
        try:
            msgspec.convert(case.params, operation.inputs.params)
        except msgspec.ValidationError as error:
            return f"params of {case.operation}: {error}"
    return ""
