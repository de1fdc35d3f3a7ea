"""Triton's interpreter without overflow checks whose results it discards."""

from __future__ import annotations

import importlib
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
