"""`@compiled`: numba's njit, put off until the first call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """`function` as machine code, one version per combination of argument types.

    numba is imported and the function compiled, or read from numba's cache on disk,
    when it is first called: importing `optimized` costs neither.
    """
    dispatcher: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal dispatcher
        if dispatcher is None:
            dispatcher = _compile(function)
        result: T = dispatcher(*args, **kwargs)
        return result

    return call


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    njit: Callable[..., Any] = numba.njit
    try:
        dispatcher: Callable[..., Any] = njit(cache=True)(function)
    except RuntimeError:  # no writable place for the cache
        dispatcher = njit(function)
    return dispatcher
