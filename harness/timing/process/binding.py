"""From a candidate's function and a call to what a clock runs: a function of no arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attnproof.harness.model.operation import Call, Operation, bound, called
from attnproof.harness.oracles.trial import digest

Thunk = Callable[[], Any]


def bind(operation: Operation, offered: Any, call: Call) -> Thunk:
    """The call, ready to run; what an adapter converts is converted now and not timed."""
    if operation.clocked is not None:
        return operation.clocked(offered, call)
    if operation.run is not called:
        return partial(operation.run, offered, call)
    return bound(offered, *call.args, **call.kwargs)


def is_spent(operation: Operation, offered: Any, call: Call) -> bool:
    """Whether the call can be made only once: the second one finds other input.

    Tried out, as what an operation writes need not be what it reads: a buffer filled
    twice is the same buffer, a batch reordered twice is not reordered the second time.
    What is clocked of a class can be repeated.
    """
    if operation.clocked is not None:
        return False
    first = _outcome(operation, offered, call)
    return _outcome(operation, offered, call) != first


def _outcome(operation: Operation, offered: Any, call: Call) -> str:
    return digest(operation.outputs(call, operation.run(offered, call)))
