"""Repeatability of a call: a clock runs most calls many times on the same input."""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.call import Call
from attnproof.harness.model.operation import Operation
from attnproof.harness.oracles.attempt import digest


def is_single_use(operation: Operation, offered: Any, call: Call) -> bool:
    """True if the call can run only once: it changes its input, and a second result differs.

    Compares the results of two calls, except for a class that is instantiated untimed.
    """
    if operation.call.repeatable:
        return False
    # A written input alone does not matter: a buffer can be filled twice. But a second call finds
    # a reordered batch in order and does less work.
    first = _outcome(operation, offered, call)
    return _outcome(operation, offered, call) != first


def _outcome(operation: Operation, offered: Any, call: Call) -> str:
    return digest(operation.call.outputs(call, operation.call.run(offered, call)))
