"""Repeatability of a call: whether a clock may run it again on the same input."""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.operation import Call, Operation
from attnproof.harness.oracles.trial import digest


def is_spent(operation: Operation, offered: Any, call: Call) -> bool:
    """True if the call can be made only once: a second call finds other input.

    Decided by trial, as what an operation writes need not be what it reads: a buffer filled
    twice is the same buffer, a batch reordered twice is not reordered the second time.
    """
    if operation.call.repeatable:
        return False
    first = _outcome(operation, offered, call)
    return _outcome(operation, offered, call) != first


def _outcome(operation: Operation, offered: Any, call: Call) -> str:
    return digest(operation.call.outputs(call, operation.call.run(offered, call)))
