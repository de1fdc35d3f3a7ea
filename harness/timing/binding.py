"""From a candidate's function and a call to what a clock runs: a function of no arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.model.operation import Call, Operation, called

Thunk = Callable[[], Any]


def bind(operation: Operation, offered: Any, call: Call) -> Thunk:
    """The call, ready to run; what an adapter converts is converted now and not timed.

    An adapter's function may have a method `bind(*args, **kwargs)`, which returns the
    engine's own function with the arguments as the engine takes them.
    """
    if operation.run is not called:
        return partial(operation.run, offered, call)
    binder = getattr(offered, "bind", None)
    if binder is not None:
        thunk: Thunk = binder(*call.args, **call.kwargs)
        return thunk
    return partial(offered, *call.args, **call.kwargs)


def is_spent(call: Call) -> bool:
    """Whether the call can be made only once, as it writes some of its input."""
    return bool(call.written or call.plain_written)
