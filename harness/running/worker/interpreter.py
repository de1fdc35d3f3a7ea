"""Triton's interpreter without the work that it throws away."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any


def spare_discarded_checks() -> None:
    """Keep the interpreter from computing assertions that it then does not make.

    It computes each sum and product of integers a second time, 64 bits wide, for an
    overflow check that does nothing unless its option `debug` is on: a fifth of the time
    of an attention kernel. To be called before a kernel is.
    """
    try:
        interpreter = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if hasattr(options, "sanitize_overflow") and not options.debug:
        builder.options = replace(options, sanitize_overflow=False)
