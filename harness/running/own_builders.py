"""Metadata builders that candidates define: each one is an operation of its own.

They are read from the source, because only workers import a candidate.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from attnproof import reference
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.operations.builders.own_builder import builder_operation
from attnproof.harness.running.adapting import read_adapter, target_of
from attnproof.harness.running.engine_source import source_of

_BASE = "MetadataBuilder"
"""End of the names of the classes that builders extend."""


def use_builders(candidates: Iterable[Candidate]) -> None:
    """Register an operation for each builder of the candidates."""
    for candidate in candidates:
        for name in builders_of(candidate.target):
            if not hasattr(reference, name):
                setattr(reference, name, reference.BatchMetadataBuilder)
                ALL[name] = builder_operation(name)


def builders_of(target: str) -> list[str]:
    """Return the names of the builder classes of a candidate's module, [] without a source."""
    path = Path(target)
    if path.suffix == ".toml":
        adapter = read_adapter(path)
        found = builders_of(target_of(path, adapter).partition(":")[0])
        return [*dict.fromkeys([*adapter.builders, *found])]
    if not path.is_absolute():
        source = source_of(target.partition(":")[0])
    else:
        source = path / "__init__.py" if path.is_dir() else path
    return sorted(_builders(source)) if source and source.suffix == ".py" else []


@cache
def _builders(source: Path) -> frozenset[str]:
    """Return the builders that a module defines, or imports from modules beside it."""
    try:
        body = ast.parse(source.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    return frozenset(_defined(body)) | frozenset(_imported(body, source))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    builders, imported = set[str](), dict[str, str]()
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            imported |= {alias.asname or alias.name: alias.name for alias in statement.names}
        if not isinstance(statement, ast.ClassDef):
            continue
        bases = map(_last_name, statement.bases)
        names = {imported.get(name, name) for name in bases}
        if any(name.endswith(_BASE) or name in builders for name in names):
            builders.add(statement.name)
            yield statement.name


def _last_name(base: ast.expr) -> str:
    """Return the name of a base class without its module and its arguments."""
    if isinstance(base, ast.Subscript):
        return _last_name(base.value)
    if isinstance(base, ast.Attribute):
        return base.attr
    return base.id if isinstance(base, ast.Name) else ""


def _imported(body: list[ast.stmt], source: Path) -> Iterator[str]:
    for statement in body:
        if not isinstance(statement, ast.ImportFrom) or not statement.level:
            continue
        folder = source.parents[statement.level - 1]
        stem = folder.joinpath(*(statement.module or "").split("."))
        for file in (stem / "__init__.py", stem.with_suffix(".py")):
            if file.is_file() and file != source:
                named = {alias.name: alias.asname or alias.name for alias in statement.names}
                yield from (named[name] for name in _builders(file) & named.keys())
