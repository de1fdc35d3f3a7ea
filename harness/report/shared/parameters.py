"""Meanings of a case's parameters, from the texts where they are declared."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import msgspec

from attnproof import reference
from attnproof.harness.guard import attempt
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.params import free_axes
from attnproof.harness.report.shared.wording import shorten
from attnproof.reference.definition.definition import Definition, definition_of
from attnproof.reference.definition.roles import Array, Flag

_LONGEST = 120
"""Characters of the longest meaning."""


def meanings(case: Case) -> dict[str, str]:
    """Return a phrase on each parameter of the case that some text explains, by name."""
    return attempt("the meanings of parameters", lambda: _meanings(case.operation), lambda _: {})


def _meanings(name: str) -> dict[str, str]:
    """Return docstrings of fields, else declared arrays, clauses of docstrings, declarations."""
    operation = ALL.get(name)
    if operation is None:
        return {}
    texts: dict[str, str] = {}
    for function in (getattr(reference, used, None) for used in operation.call.names(name)):
        definition = definition_of(function)
        if definition is not None:
            texts |= dict(_declared(definition, arrays=False))
        texts |= dict(_documented(inspect.getdoc(function) or ""))
        if definition is not None:
            texts |= dict(_declared(definition, arrays=True))
    texts |= _fields(operation.inputs.params)
    return {name: shorten(text.rstrip("."), _LONGEST) for name, text in texts.items()}


def _declared(definition: Definition, *, arrays: bool) -> Iterator[tuple[str, str]]:
    """Yield the parameters of derived cases as the signature declares them."""
    for argument in definition.every_argument:
        yield f"with_{argument.name}", f"True if {argument.name} is given"
        is_array = isinstance(argument.declared, Array)
        if is_array == arrays and not isinstance(argument.declared, Flag):  # its name says all
            yield argument.name, str(argument.declared).strip("<>")
    yield from ((f"size_{axis}", f"Size of the axis {axis}") for axis in free_axes(definition))


def _documented(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the names in backquotes that are alone in a clause, with the first such clause."""
    clauses = [" ".join(clause.split()) for clause in re.split(r"[.;]\s|\n\n", docstring)]
    for clause in reversed(clauses):
        names = re.findall(r"`(\w+)`", clause)
        if len(names) == 1 and not clause.startswith("Raise"):
            yield names[0], clause


@lru_cache
def _fields(params: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings of fields: the strings behind their annotations, or of their types."""
    texts: dict[str, str] = {}
    for owner in params.__mro__[-3::-1]:  # without those of msgspec and Python
        try:
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError):  # made from a definition: it has no source
            continue
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, text in pairwise(body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(docstring))),
                ):
                    texts[name] = " ".join(docstring.split())
    structs = [f for f in msgspec.structs.fields(params) if isinstance(f.type, type)]
    described = (f for f in structs if issubclass(f.type, msgspec.Struct))
    return {f.name: inspect.getdoc(f.type) or "" for f in described} | texts
