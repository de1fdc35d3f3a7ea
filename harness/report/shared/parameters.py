"""Meanings of a case's parameters, from the texts where they are declared."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from attnproof import reference
from attnproof.harness.guard import attempt
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.params import SPARE, free_axes
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
    fields = operation.inputs.params.__struct_fields__
    for function in (getattr(reference, used, None) for used in operation.call.names(name)):
        definition = definition_of(function)
        if definition is not None:
            texts |= dict(_declared(definition, arrays=False))
        for described in (*_methods(function), function):
            texts |= _documented(inspect.getdoc(described) or "", fields)
        if definition is not None:
            texts |= dict(_declared(definition, arrays=True))
    for function in _case_functions(operation.inputs.params):
        texts |= _documented(inspect.getdoc(function) or "", fields)
    texts |= _fields(operation.inputs.params)
    return {name: shorten(text.rstrip("."), _LONGEST) for name, text in texts.items()}


def _methods(function: Any) -> Iterator[Any]:
    """Yield the functions in the body of a class, none for another object."""
    for value in vars(function).values() if inspect.isclass(function) else ():
        method = getattr(value, "__func__", value)
        if inspect.isfunction(method):
            yield method


def _beside(params: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the names in the modules of the type and its bases, with their values."""
    for owner in params.__mro__[-3::-1]:  # without those of msgspec and Python
        module = sys.modules.get(owner.__module__)
        yield from vars(module).items() if module is not None else ()


def _case_functions(params: type[msgspec.Struct]) -> Iterator[Any]:
    """Yield the functions beside the type of parameters that make a case of them."""
    named = (value for name, value in _beside(params) if name.endswith("_case"))
    yield from filter(inspect.isfunction, named)


def _owners(params: type[msgspec.Struct]) -> Iterator[type]:
    """Yield dataclasses that have all of the fields, and the type with its bases."""
    wanted = {*params.__struct_fields__}
    for _, value in _beside(params):
        if isinstance(value, type) and wanted <= getattr(value, "__dataclass_fields__", {}).keys():
            yield value
    yield from params.__mro__[-3::-1]


def _declared(definition: Definition, *, arrays: bool) -> Iterator[tuple[str, str]]:
    """Yield the parameters of derived cases as the signature declares them."""
    for argument in definition.every_argument:
        yield f"with_{argument.name}", f"True if {argument.name} is given"
        declared = argument.declared
        is_array = isinstance(declared, Array)
        if isinstance(declared, Array) and declared.longer:
            yield SPARE, "Entries behind those that are read or written"
        if is_array == arrays and not isinstance(declared, Flag):  # its name says all
            yield argument.name, str(declared).strip("<>")
    yield from ((f"size_{axis}", f"Size of the axis {axis}") for axis in free_axes(definition))


def _documented(docstring: str, fields: Collection[str]) -> dict[str, str]:
    """Return the first clause on each name in backquotes; those about it alone come first."""
    clauses = [" ".join(clause.split()) for clause in re.split(r"[.;]\s|\n\n", docstring)]
    alone: dict[str, str] = {}
    among: dict[str, str] = {}
    for clause in reversed(clauses):
        names = re.findall(r"`(\w+)`", clause)
        if clause.startswith("Raise"):
            continue
        text = re.sub(r"^(Return a case( with)?|flags|`\w+`): ?", "", clause)
        if len(names) == 1:
            alone[names[0]] = text
        among |= {name: clause for name in names if name in fields}
    return among | alone


@lru_cache
def _fields(params: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings of fields: the strings behind their annotations, or of their types."""
    texts: dict[str, str] = {}
    for owner in _owners(params):
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
    for one in msgspec.structs.fields(params):
        if isinstance(one.type, type) and issubclass(one.type, msgspec.Struct):
            texts.setdefault(one.name, inspect.getdoc(one.type) or "")
        for meta in getattr(one.type, "__metadata__", ()):
            if isinstance(meta, msgspec.Meta) and meta.description:
                texts[one.name] = meta.description
    return texts
