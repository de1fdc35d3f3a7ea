"""Places of a candidate's functions in its source, as "file:line"."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from attnproof.harness.model.text import utf8
from attnproof.harness.running.adapting import ADAPTED

_WRAPPED = ("__wrapped__", "__func__", "py_func", "fn", "func")
"""Attributes that hold the function inside: of functools, methods, numba, Triton, partials."""
_DEEPEST = 10


def place_of(module: Any, names: Iterable[str]) -> str:
    """Return the place of the first of these functions or classes, "" if it has none.

    The path is relative to the current folder if it is below it. Nothing is read from disk.
    """
    try:
        offered = (getattr(module, name, None) for name in names)
        code = next((function_code for each in offered if (function_code := _code(each))), None)
        here = Path.cwd()
    except Exception:  # attributes of a candidate's objects may raise anything
        return ""
    if code is None:
        return ""
    path = Path(code.co_filename)
    if path.is_relative_to(here):
        path = path.relative_to(here)
    return utf8(f"{os.fspath(path)}:{code.co_firstlineno}")


def _code(offered: Any) -> CodeType | None:
    """Return the code of a function, or the first code of a class."""
    offered = getattr(offered, ADAPTED, offered)  # that of the candidate, not of its table
    if isinstance(offered, type):
        codes = [code for value in vars(offered).values() if (code := _code_of(value))]
        # A dataclass has generated methods, whose file is "<string>".
        in_files = [code for code in codes if not code.co_filename.startswith("<")]
        return min(in_files, key=lambda code: code.co_firstlineno, default=None)
    return _code_of(offered)


def _code_of(function: Any) -> CodeType | None:
    for _ in range(_DEEPEST):
        inner = (getattr(function, name, None) for name in _WRAPPED)
        wrapped = next((each for each in inner if each is not None), None)
        if wrapped is None:
            break
        function = wrapped
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
