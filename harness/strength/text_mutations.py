"""Mutations as tables: a part of `reference` whose source has another text in one place."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attnproof import reference
from attnproof.harness.backports import tomllib
from attnproof.harness.strength.mutants.operators import functions
from attnproof.harness.strength.mutation import Mutation

_MODULES = {
    name: sys.modules[part.__module__]
    for name, part in vars(reference).items()
    if callable(part) and name in reference.__all__
}
"""Modules of the reference by part, from before anything is planted."""


def read_mutations(path: Path) -> Iterator[Mutation]:
    """Yield the mutations of a file, which are tables [operation.name_of_the_mutation].

    `before` and `after` are texts in the function or "Class.method" `where` (default: the part),
    of another module in the folder of the part's: "module:Class.method". `part` is by default the
    class of `where`, or the operation. The rest are fields of `Mutation`.
    Raise ValueError for any other key.
    """
    for operation, tables in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for name, table in tables.items():
            try:
                mutation = _mutation(operation, name.replace("_", " "), **table)
            except TypeError as error:  # an unknown key, or none of those that it needs
                raise ValueError(f"{path}, table [{operation}.{name}]: {error}") from None
            yield mutation


def _mutation(
    operation: str,
    name: str,
    *,
    before: str,
    after: str,
    where: str = "",
    part: str = "",
    **rest: Any,
) -> Mutation:
    part = part or (where.partition(".")[0] if "." in where else operation)

    def wrong(_right: Any) -> Any:
        return changed(part, where or part, before, after)

    fields: dict[str, Any] = {"id": name}
    fields |= {field: tuple(it) if isinstance(it, list) else it for field, it in rest.items()}
    return Mutation(name=name, operation=operation, part=part, wrong=wrong, **fields)


def changed(part: str, where: str, before: str, after: str) -> Any:
    """Return a part of the reference, compiled with `after` for `before` in a function `where`.

    Lines of both after the first are indented like the line in which `before` begins. Raise
    ValueError unless `before` occurs once.
    """
    module = _MODULES[part]
    beside, _, where = where.rpartition(":")
    changed_module = import_module(f".{beside}", module.__package__) if beside else module
    name = where.partition(".")[0]
    source = _replaced(inspect.getsource(changed_module), where, before, after)
    names = _compiled(changed_module, name if beside else part, source, {})
    if name not in names:
        raise ValueError(f"{where} is neither a function of the module nor of the class {part}")
    if beside:
        names = _compiled(module, part, inspect.getsource(module), names)
    return names[part]


def _compiled(module: ModuleType, part: str, source: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return the functions of a source and its class `part`, compiled as those of a module.

    `names` replace what the module imports.
    """
    tree = ast.parse(source)
    # Other classes stay those of the reference: instances of them are compared and checked.
    own = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.ClassDef) and node.name == part)
    }
    tree.body = list(own.values())
    # Under another name `operation` does not take the changed part's definition for its own.
    namespace = vars(module) | names | {"__name__": __name__}
    # Annotations stay texts, as in the module: `compile` takes over this module's future imports.
    exec(compile(tree, str(module.__file__), "exec"), namespace)
    return {name: namespace[name] for name in own}


def _replaced(source: str, where: str, before: str, after: str) -> str:
    """Return the module's source with the text `after` for `before` in a function."""
    lines = source.splitlines(keepends=True)
    function = functions(ast.parse(source))[where]
    start, end = (sum(map(len, lines[:n])) for n in (function.lineno - 1, function.end_lineno))
    pattern = re.compile(r"\n *".join(re.escape(line) for line in before.splitlines()))
    places = [place.span() for place in pattern.finditer(source, start, end)]
    if len(places) != 1:
        raise ValueError(f"{where}: {before!r} occurs {len(places)} times, expected once")
    ((first, last),) = places
    indent = re.match(" *", source[source.rindex("\n", 0, first) + 1 :])
    text = f"\n{indent[0] if indent else ''}".join(after.splitlines())
    return source[:first] + text + source[last:]
