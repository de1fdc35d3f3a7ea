"""An engine's source, read without importing it: the names that its modules define."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


def names_of(module: str) -> frozenset[str]:
    """Return the names that a module defines or imports at its top, none if it has no source.

    A name behind a condition counts; a module of an engine chooses by what is installed.
    """
    return frozenset(_bound(_body(source_of(module))))


def own_names_of(module: str) -> frozenset[str]:
    """Return the names that a module itself defines at its top, none if it has no source."""
    body = _body(source_of(module))
    imports = (ast.Import, ast.ImportFrom)
    return frozenset(_bound(statement for statement in body if not isinstance(statement, imports)))


def members_of(module: str, name: str) -> frozenset[str]:
    """Return the fields and methods that the body of a module's class defines, none without it."""
    for statement in _body(source_of(module)):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return frozenset(_bound(statement.body))
    return frozenset()


@cache
def _body(path: Path | None) -> tuple[ast.stmt, ...]:
    try:
        return tuple(ast.parse(path.read_bytes()).body) if path else ()
    except (OSError, SyntaxError, ValueError):
        return ()


def source_of(module: str) -> Path | None:
    """Return the file of a module: its own, or that of a package."""
    package, *names = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # imported, from nowhere
        spec = None
    for folder in (spec.submodule_search_locations if spec else None) or ():
        stem = Path(folder).joinpath(*names)
        for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if path.is_file():
                return path
    return None


def _bound(statements: Iterable[ast.AST]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        else:  # both ways of a condition, all parts of a `try`
            inner = (ast.stmt, ast.ExceptHandler)
            yield from _bound(
                child for child in ast.iter_child_nodes(statement) if isinstance(child, inner)
            )
