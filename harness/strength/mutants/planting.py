"""Plant a mutant in this process."""

from __future__ import annotations

import ast
import difflib
import gc
import importlib
import linecache
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from attnproof.harness.model.files import read_regular
from attnproof.harness.strength.mutants.mutant import Mutant
from attnproof.harness.strength.mutants.operators import Function, functions, has_run, mutated

backend: Any = None
"""The candidate with a mutant, in a process that judges one."""
_functions: dict[str, list[FunctionType]] = {}
"""Function objects by file, of the files that `find_functions` was given."""


class NotPlantedError(Exception):
    """The change does not compile, or has another closure."""


def called_functions(lines: dict[str, set[int]]) -> list[tuple[str, str, Function]]:
    """Return file, name and syntax tree of the functions that ran, given their lines by file."""
    return [
        (file, name, function)
        for file, ran in sorted(lines.items())
        for name, function in functions(_tree(file)).items()
        if has_run(function, ran)
    ]


def find_functions(package: Any, files: Collection[str]) -> None:
    """Import the modules of a package that have these files, such as kernels; find their functions.

    Forks of this process plant in them: to look for them there would copy all shared memory.
    """
    root = root_of(package)
    for file in files:
        if Path(file) != root:
            parts = Path(file).relative_to(root).with_suffix("").parts
            importlib.import_module(".".join([package.__name__, *parts]).removesuffix(".__init__"))
    by_file: dict[str, list[FunctionType]] = {file: [] for file in files}
    # `type` asks no object for its class: torch warns when a deprecated one is asked.
    for function in (f for f in gc.get_objects() if type(f) is FunctionType):
        if function.__code__.co_filename in by_file:
            by_file[function.__code__.co_filename].append(function)
    _functions.update(by_file)


def changed_lines(mutant: Mutant) -> str:
    """Return the lines of the function that the mutant changes, "- " old and "+ " new ones."""
    tree = _tree(mutant.file)
    before, after = (
        ast.unparse(functions(module)[mutant.function]).splitlines()
        for module in (tree, mutated(tree, mutant.function, mutant.index))
    )
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    return "".join(f"{line[0]} {line[1:].strip()}\n" for line in lines if line[0] in "-+")


def plant(mutant: Mutant) -> None:
    """Change the code of a function that `find_functions` has found. Raise NotPlantedError.

    Inner functions that exist already, such as one that a decorator has made, change too.
    """
    tree = _tree(mutant.file)
    old = _code_of(compile(tree, mutant.file, "exec"), mutant.function)
    try:
        changed = mutated(tree, mutant.function, mutant.index)
        module_code = compile(changed, mutant.file, "exec")
    except (SyntaxError, ValueError, IndexError) as error:
        raise NotPlantedError(str(error)) from None
    new = _by_place(_code_of(module_code, mutant.function))
    outer, planted = _place(old), 0
    places = set(_by_place(old)) & set(new)
    for function in _functions.get(mutant.file, []):
        if _place(function.__code__) not in places:
            continue
        code = new[_place(function.__code__)]
        if function.__code__.co_freevars != code.co_freevars:
            raise NotPlantedError("another closure")
        if mutant.operator == "default" and _place(code) == outer:
            _change_defaults(function, mutant)
        function.__code__ = code
        planted += 1
    if not planted:
        raise NotPlantedError("no function with this code")
    _change_source(mutant, functions(changed)[mutant.function])


def _change_source(mutant: Mutant, function: Function) -> None:
    """Let `inspect` return the mutant's source: Triton's interpreter runs a kernel's source."""
    lines = linecache.getlines(mutant.file)
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
    room = (function.end_lineno or 0) - first
    indent = " " * function.col_offset
    unparsed = ast.unparse(function).splitlines()
    source = [f"{indent}{line}\n" for line in unparsed if line]
    if len(source) > room:  # several statements on a line, which no kernel has
        return
    lines[first : first + room] = source + ["\n"] * (room - len(source))
    linecache.cache[mutant.file] = (0, None, lines, mutant.file)


def _change_defaults(function: FunctionType, mutant: Mutant) -> None:
    """Give the function the mutant's defaults, which are no part of its code."""
    tree = mutated(_tree(mutant.file), mutant.function, mutant.index)
    arguments = functions(tree)[mutant.function].args
    values = [_literal(node) for node in arguments.defaults]
    if function.__defaults__ and len(values) == len(function.__defaults__):
        pairs = zip(values, function.__defaults__, strict=True)
        function.__defaults__ = tuple(old if new is _UNKNOWN else new for new, old in pairs)
    names = [argument.arg for argument in arguments.kwonlyargs]
    for name, default in zip(names, arguments.kw_defaults, strict=True):
        value = _literal(default)
        if function.__kwdefaults__ and name in function.__kwdefaults__ and value is not _UNKNOWN:
            function.__kwdefaults__[name] = value


_UNKNOWN = object()


def _literal(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else _UNKNOWN


def _tree(file: str) -> ast.Module:
    return ast.parse(read_regular(file), file)


def _code_of(module: CodeType, name: str) -> CodeType:
    """Return the code of a function or method in the code of its module."""
    code = module
    for part in name.split("."):
        named = [constant for constant in _constants(code) if constant.co_name == part]
        if not named:
            raise NotPlantedError(f"no code of {name}")
        code = named[-1]
    return code


def _constants(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


_Place = tuple[str, str, int]
"""File, name and first line of a code object."""


def _place(code: CodeType) -> _Place:
    return code.co_filename, code.co_name, code.co_firstlineno


def _by_place(code: CodeType) -> dict[_Place, CodeType]:
    """Return a code object and all inside it, without those that share their place."""
    codes = [code]
    for inner in codes:
        codes += _constants(inner)
    count = Counter(_place(part) for part in codes)
    return {_place(part): part for part in codes if count[_place(part)] == 1}


def root_of(module: Any) -> Path:
    """Return the folder of a candidate's package, or its file."""
    file = Path(getattr(module, "__file__", "") or "")
    is_package = isinstance(module, ModuleType) and hasattr(module, "__path__")
    return file.parent if is_package else file
