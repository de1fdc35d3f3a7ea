"""Patches of Triton's interpreter that skip repeated and discarded work."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any


def skip_discarded_checks() -> None:
    """Switch off the interpreter's overflow checks; call it before the first kernel runs.

    The interpreter computes each sum and product of integers a second time, 64 bits wide,
    for an assertion that is made only if its option `debug` is on: a fifth of the time of
    an attention kernel.
    """
    try:
        interpreter = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if hasattr(options, "sanitize_overflow") and not options.debug:
        builder.options = replace(options, sanitize_overflow=False)


def skip_repeated_work() -> None:
    """Patch the interpreter of this process; the results of kernels do not change."""
    try:
        interpreter = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return
    for name, replacement in (("_patch_lang", _patched_once), ("_get_np_dtype", _looked_up_once)):
        if hasattr(interpreter, name):
            setattr(interpreter, name, replacement(getattr(interpreter, name)))
    executor = getattr(interpreter, "GridExecutor", None)
    if executor is not None:
        executor.__call__ = _without_profile(executor.__call__)


class _Unrestored:
    """A patch scope that keeps the patches."""

    def restore(self) -> None:
        """Do nothing: every later kernel of this process needs the same patches."""


def _patched_once(patch_lang: Callable[[Any], Any]) -> Callable[[Any], _Unrestored]:
    # The interpreter patches `triton.language` again for each launch and for each call of a
    # device function, some 300 attributes: a fifth of the time of an attention kernel.
    patched: set[Any] = set()

    def patch(function: Any) -> _Unrestored:
        if function not in patched:
            patched.add(function)
            patch_lang(function)
        return _Unrestored()

    return patch


def _looked_up_once(numpy_dtype: Callable[[Any], Any]) -> Callable[[Any], Any]:
    # The interpreter builds a dictionary of all types for each look-up.
    known: dict[str, Any] = {}

    def look_up(triton_type: Any) -> Any:
        name = triton_type.scalar.name
        if name not in known:
            known[name] = numpy_dtype(triton_type)
        return known[name]

    return look_up


def _without_profile(launch: Callable[..., Any]) -> Callable[..., Any]:
    # The determinism oracle watches the calls of a candidate with `sys.setprofile`. A kernel has
    # no host code to watch, and the interpreter makes thousands of calls for it.
    def launch_unprofiled(*args: Any, **options: Any) -> Any:
        profile = sys.getprofile()
        if profile is None:
            return launch(*args, **options)
        sys.setprofile(None)
        try:
            return launch(*args, **options)
        finally:
            sys.setprofile(profile)

    return launch_unprofiled
