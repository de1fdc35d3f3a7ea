"""Operations whose functions launch kernels of Triton, and so fail on CPU tensors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from attnproof.harness.model.operation import Operation
from attnproof.harness.running.task.workers import InvalidCaseError, Worker

_MOST_CASES = 20
"""Edge cases of an operation that are tried: the first ones may be empty, and launch nothing."""
_IN_TRITON = "/triton/runtime/"
"""Part of the file of a frame that launches a kernel."""


def launching_operations(worker: Worker, operations: Mapping[str, Operation]) -> frozenset[str]:
    """Return the operations of a worker on the CPU that launch Triton.

    Those of which the code names a kernel are called: a function may have another way for the CPU.
    """
    return frozenset(name for name in worker.launching if _launches(worker, operations[name]))


def _launches(worker: Worker, operation: Operation) -> bool:
    if not operation.call.takes_arguments:  # a step that raises keeps no traceback
        return True
    for _, case in islice(operation.inputs.boundaries(), _MOST_CASES):
        try:
            verdict = worker.judge(worker.in_interface(case), repeated=False, poisoned=False)
        except InvalidCaseError:
            return True
        if any(_IN_TRITON in failure.log for failure in verdict.failures):
            return True
    return False
