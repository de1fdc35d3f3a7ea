"""`@compiled`: numba's njit, put off until the first call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_placeholders: set[Callable[..., Any]] = set()
_dispatchers: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """`function` as machine code, one version per combination of argument types.

    numba is imported and the function compiled, or read from numba's cache on disk,
    when it is first called: importing `optimized` costs neither. From then on the name
    in its module is numba's own, so that `module.function(...)` costs nothing on top.
    Loops may call loops of their own file (numba's cache notices no change elsewhere).
    """
    dispatcher: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal dispatcher
        if dispatcher is None:
            dispatcher = _dispatcher(function)
        result: T = dispatcher(*args, **kwargs)
        return result

    _placeholders.add(call)
    return call


def _dispatcher(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's machine code, put in its name's place; that of its callees first."""
    if function not in _dispatchers:
        names = function.__globals__
        for callee in [names.get(name) for name in function.__code__.co_names]:
            if callable(callee) and callee in _placeholders:
                _dispatcher(inspect.unwrap(callee))
        names[function.__name__] = _dispatchers[function] = _jitted(function)
    return _dispatchers[function]


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    from .addresses import teach_numba

    teach_numba()
    njit: Callable[..., Any] = numba.njit
    try:
        dispatcher: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:  # no writable place for the cache
        dispatcher = njit(function)
    return dispatcher


def entry(function: Callable[P, T]) -> Callable[P, T]:
    """As `compiled`, for a loop of ints and bools only that no other loop calls.

    It has one version, so numba need not look for the one that fits the arguments:
    `module.function(...)` is the machine code itself, and takes half as long to call.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        code = _entry_point(function)
        function.__globals__[function.__name__] = code
        result: T = code(*args, **kwargs)
        return result

    return call


def _entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    dispatcher: Any = _dispatcher(function)
    if not hasattr(dispatcher, "compile"):  # numba is told to compile nothing
        return function

    from numba import types

    known = {"int": types.int64, "bool": types.boolean}
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    code: Callable[..., Any] = dispatcher.compile(tuple(known[hint] for hint in hints.values()))
    return code
