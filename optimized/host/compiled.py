"""Compile loops with numba on their first call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .arrays import Integers

P = ParamSpec("P")
T = TypeVar("T")

_placeholders: set[Callable[..., Any]] = set()
_dispatchers: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function` on its first call, one version per combination of argument types.

    The first call imports numba and compiles the function, or reads it from numba's cache
    on disk, so importing `optimized` does neither. It also replaces the function in its
    module with numba's dispatcher, so later calls of `module.function(...)` have no
    overhead. A loop may call other loops of its own file only: numba's cache does not
    detect changes in other files.
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
    """Return numba's dispatcher of the function and put it in its module, callees first."""
    if function not in _dispatchers:
        names = function.__globals__
        for callee in [names.get(name) for name in function.__code__.co_names]:
            if callable(callee) and callee in _placeholders:
                _dispatcher(inspect.unwrap(callee))
        names[function.__name__] = _dispatchers[function] = _jitted(function)
    return _dispatchers[function]


def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    from .addresses import register_with_numba

    register_with_numba()
    njit: Callable[..., Any] = numba.njit
    try:
        dispatcher: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:  # numba found no writable folder for its cache
        dispatcher = njit(function)
    return _in_python(function) if dispatcher is function else dispatcher


def _in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function for NUMBA_DISABLE_JIT: integers are Python's, as in compiled code."""

    @wraps(function)
    def call(*args: Any) -> Any:
        converted = (a.view(Integers) if type(a) is np.ndarray else a for a in args)
        result = function(*converted)
        if isinstance(result, tuple):
            return tuple(map(_plain, result))
        return _plain(result)

    return call


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def entry(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function` on its first call as the single version for its annotated types.

    For a loop with only int and bool parameters that no other loop calls. Later calls of
    `module.function(...)` skip numba's dispatcher and take half as long.
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
    if not hasattr(dispatcher, "compile"):  # NUMBA_DISABLE_JIT is set
        return _dispatchers[function]

    from numba import types

    known = {"int": types.int64, "bool": types.boolean}
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    code: Callable[..., Any] = dispatcher.compile(tuple(known[hint] for hint in hints.values()))
    return code
