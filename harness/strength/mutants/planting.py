"""Find the functions that an operation calls, and plant a mutant in this process."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from attnproof.harness.strength.mutants.mutant import Mutant
from attnproof.harness.strength.mutants.operators import Function, functions, mutated

backend: Any = None
"""The candidate with a mutant, in a process that judges one."""


class NotPlantedError(Exception):
    """The change does not compile, or has another closure."""


def record_calls(root: Path, seen_file: Path) -> None:
    """Append "file:line" of each function below `root` that is called, in this process and forks.

    The line is that of the function's first line, with its decorators.
    """
    start, seen = str(root), set[tuple[str, int]]()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(start):
            return
        key = (code.co_filename, code.co_firstlineno)
        if key not in seen:
            seen.add(key)
            with seen_file.open("a", encoding="utf-8") as file:
                file.write(f"{key[0]}:{key[1]}\n")

    sys.setprofile(note)


def called_functions(seen_file: Path) -> list[tuple[str, str, Function]]:
    """Return file, name and syntax tree of the functions that were recorded."""
    places: dict[str, set[int]] = {}
    lines = seen_file.read_text(encoding="utf-8").splitlines() if seen_file.exists() else []
    for line in lines:
        file, _, number = line.rpartition(":")
        places.setdefault(file, set()).add(int(number))
    found = []
    for file, numbers in sorted(places.items()):
        for name, function in functions(_tree(file)).items():
            first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
            # An inner function belongs to the outermost one around it.
            if any(first <= number <= (function.end_lineno or 0) for number in numbers):
                found.append((file, name, function))
    return found


def plant(mutant: Mutant) -> None:
    """Change the code of the mutant's function in this process. Raise NotPlantedError."""
    tree = _tree(mutant.file)
    old = _code_of(compile(tree, mutant.file, "exec"), mutant.function)
    try:
        made = compile(mutated(tree, mutant.function, mutant.index), mutant.file, "exec")
    except (SyntaxError, ValueError, IndexError) as error:
        raise NotPlantedError(str(error)) from None
    planted = 0
    new = _code_of(made, mutant.function)
    for function in _functions_with(old):
        if function.__code__.co_freevars != new.co_freevars:
            raise NotPlantedError("another closure")
        if mutant.operator == "default":
            _change_defaults(function, mutant)
        function.__code__ = new
        planted += 1
    if not planted:
        raise NotPlantedError("no function with this code")


def _change_defaults(function: FunctionType, mutant: Mutant) -> None:
    """Give the function the mutant's defaults, which are no part of its code."""
    tree = mutated(_tree(mutant.file), mutant.function, mutant.index)
    arguments = functions(tree)[mutant.function].args
    values = [_literal(one) for one in arguments.defaults]
    if function.__defaults__ and len(values) == len(function.__defaults__):
        pairs = zip(values, function.__defaults__, strict=True)
        function.__defaults__ = tuple(old if new is _UNKNOWN else new for new, old in pairs)
    names = [one.arg for one in arguments.kwonlyargs]
    for name, default in zip(names, arguments.kw_defaults, strict=True):
        value = _literal(default)
        if function.__kwdefaults__ and name in function.__kwdefaults__ and value is not _UNKNOWN:
            function.__kwdefaults__[name] = value


_UNKNOWN = object()


def _literal(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else _UNKNOWN


def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"), file)


def _code_of(module: CodeType, name: str) -> CodeType:
    """Return the code of a function or method in the code of its module."""
    code = module
    for part in name.split("."):
        named = [one for one in _constants(code) if one.co_name == part]
        if not named:
            raise NotPlantedError(f"no code of {name}")
        code = named[-1]
    return code


def _constants(code: CodeType) -> Iterator[CodeType]:
    return (one for one in code.co_consts if isinstance(one, CodeType))


def _functions_with(code: CodeType) -> list[FunctionType]:
    """Return the function objects of this process that were made from the code."""
    place = (code.co_filename, code.co_name, code.co_firstlineno)
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, FunctionType)
        and (one.__code__.co_filename, one.__code__.co_name, one.__code__.co_firstlineno) == place
    ]


def root_of(module: Any) -> Path:
    """Return the folder of a candidate's package, or its file."""
    file = Path(getattr(module, "__file__", "") or "")
    is_package = isinstance(module, ModuleType) and hasattr(module, "__path__")
    return file.parent if is_package else file
