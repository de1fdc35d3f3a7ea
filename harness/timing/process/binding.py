"""Repeatability of a call: whether a clock may run it again on the same input."""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.call import Call
from attnproof.harness.model.operation import Operation
from attnproof.harness.oracles.trial import digest


def is_single_use(operation: Operation, offered: Any, call: Call) -> bool:
    """True if the call can run only once: it changes its input, and a second result differs.

    Determined by two calls, as a written input need not matter: a buffer can be filled
    twice, but a reordered batch is in order. A class that is made untimed can be repeated.
    """
    if operation.call.repeatable:
        return False
    first = _outcome(operation, offered, call)
    return _outcome(operation, offered, call) != first


def _outcome(operation: Operation, offered: Any, call: Call) -> str:
    return digest(operation.call.outputs(call, operation.call.run(offered, call)))
