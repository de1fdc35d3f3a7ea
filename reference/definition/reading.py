"""Definitions read from the signatures of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from .model import Argument, Definition, DefinitionError, Result, Values
from .roles import CUT_AXES, Array, Declaration, Flag, Int, Object
from .rules import check_axes

_PLAIN: dict[Any, Declaration] = {int: Int(), bool: Flag()}
"""Declarations of arguments without one."""
_PARAMETERS = ("layout", "order", "spare", "batch", "steps", "do")
"""Parameters of cases that are not those of an argument."""
_UNDECLARED = object()
"""Annotation of a result without one."""


@dataclass(frozen=True)
class Added:
    """Conditions, values and parameters that `@operation` adds to the signatures it reads."""

    requires: tuple[Callable[..., Any], ...] = ()
    values: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    opened: frozenset[str] = frozenset()
    """Arguments of a class's instantiation, which its methods do not have."""


def read_signature(
    function: Any,
    name: str,
    named: str,
    added: Added,
    *,
    results: tuple[str, ...] = (),
    independent: bool = False,
    bound: bool = False,
) -> Definition:
    """Return the definition in a signature; raise DefinitionError."""
    place = place_of(function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # a name that is not imported
        raise DefinitionError(
            f"{place}: {named}: its annotations cannot be read: {error}"
        ) from None
    parameters = [*inspect.signature(function).parameters.values()][int(bound) :]
    arguments = tuple(
        _argument(arg, hints.get(arg.name), f"{place}: {named}") for arg in parameters
    )
    names = {arg.name for arg in arguments}
    used = tuple(condition for condition in added.requires if _parameters(condition) <= names)
    definition = Definition(
        name,
        "" if bound else summary_of(function, place),
        place,
        function,
        arguments,
        _results(
            hints.get("return", None if name == "__init__" else _UNDECLARED),
            results,
            f"{place}: {named}",
        ),
        used,
        independent,
        values=added.values,
        choices=added.choices,
    )
    check_axes(definition, f"{place}: {named}", added.opened)
    written = {arg.name for arg in arguments if arg.is_written}
    for result in definition.results:
        if result.name in written:
            raise DefinitionError(
                f"{place}: {named}: {result.name} is an argument that is written: name the result "
                "otherwise with @operation(results=(...,))"
            )
    return definition


def _parameters(condition: Callable[..., Any]) -> set[str]:
    return {*inspect.signature(condition).parameters} - {"operation", "sizes"}


def check_added(place: str, added: Added, parts: tuple[Definition, ...]) -> None:
    """Raise DefinitionError for a condition or a value of what no call has."""
    arguments = [arg for part in parts for arg in part.arguments]
    names = {arg.name for arg in arguments}
    arrays = [arg.declared for arg in arguments if isinstance(arg.declared, Array)]
    said = {arg.declared.axis for arg in arguments if isinstance(arg.declared, Int)}
    axes = {size.axis for array in arrays for size in array.sizes} - {"", *CUT_AXES, *said}
    for name in added.values:
        if name not in names | axes:
            listed = ", ".join(sorted(names | axes))
            raise DefinitionError(
                f"{place}: values has {name}, which is no argument or axis: those are {listed}"
            )
    for name, values in added.choices.items():
        kinds = {type(choice) for choice in values}
        taken = name in _PARAMETERS or name.startswith(("size_", "with_"))
        for problem, is_wrong in (
            ("is an argument", name in names),
            ("is a parameter that every case has", taken),
            ("has no value", not values),
            ("is of bools, ints, floats or strings, all of one type", len(kinds) > 1),
            ("is of bools, ints, floats or strings", not kinds <= {bool, int, float, str}),
        ):
            if is_wrong:
                raise DefinitionError(f"{place}: {name} of choices {problem}")
    for condition in added.requires:
        if not any(condition in part.requires for part in parts):
            wrong = sorted(_parameters(condition) - names) or sorted(_parameters(condition))
            raise DefinitionError(
                f"{place}: the condition {condition.__name__} reads {', '.join(wrong)}, which "
                f"{'is no argument' if len(wrong) == 1 else 'no call has together'}: the "
                f"arguments are {', '.join(sorted(names))}"
            )


def _argument(parameter: inspect.Parameter, hint: Any, place: str) -> Argument:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise DefinitionError(f"{place}: *{parameter.name} declares no arguments: name each one")
    optional, hint = _without_none(hint)
    declared = _declared(hint)
    if declared is None:
        raise DefinitionError(
            f"{place}: {parameter.name} has no declaration: write an alias such as SeqLens, or "
            f"Annotated[torch.Tensor, Array(...)], int or bool"
        )
    _check_default(declared, parameter, place)
    return Argument(
        parameter.name,
        declared,
        optional,
        parameter.kind is parameter.KEYWORD_ONLY,
        parameter.default,
    )


def _check_default(declared: Declaration, parameter: inspect.Parameter, place: str) -> None:
    """Raise DefinitionError for a default that the declaration does not allow."""
    default = parameter.default
    if not isinstance(declared, Int) or type(default) is not int:
        return
    for bound, is_wrong, words in (
        (declared.least, int.__lt__, "below its least value"),
        (declared.below, int.__ge__, "not below"),
    ):
        if isinstance(bound, int) and is_wrong(default, bound):
            raise DefinitionError(
                f"{place}: {parameter.name} has the default {default}, which is {words} {bound}: "
                f"declare Annotated[int, Int(least=..., below=...)]"
            )


def _without_none(hint: Any) -> tuple[bool, Any]:
    """Return True and X for `X | None`, else False and the hint."""
    parts = get_args(hint)
    if type(None) in parts and get_origin(hint) is not Annotated:
        left = [part for part in parts if part is not type(None)]
        return True, left[0] if len(left) == 1 else hint
    return False, hint


def _declared(hint: Any) -> Declaration | None:
    if get_origin(hint) is Annotated:
        declarations = [extra for extra in hint.__metadata__ if isinstance(extra, Declaration)]
        if declarations and isinstance(declarations[-1], Object) and not declarations[-1].kinds:
            plain = get_args(hint)[0]
            kinds = get_args(plain) if isinstance(plain, UnionType) else (plain,)
            classes = (get_origin(kind) or kind for kind in kinds)
            # A protocol says what is read: its objects are of any class.
            kept = tuple(cls for cls in classes if not getattr(cls, "_is_protocol", False))
            return replace(declarations[-1], kinds=kept)
        return declarations[-1] if declarations else None
    return _PLAIN.get(hint)


def _results(hint: Any, names: tuple[str, ...], place: str) -> tuple[Result, ...]:
    if hint is None or hint is type(None):
        return ()
    parts = get_args(hint) if get_origin(hint) is tuple else (hint,)
    if parts == (hint,):
        names = names or ("result",)
    names = names or tuple(f"result[{index}]" for index in range(len(parts)))
    if len(names) != len(parts):
        raise DefinitionError(f"{place}: {len(names)} names of results, {len(parts)} are returned")
    if len(set(names)) < len(names):
        raise DefinitionError(f"{place}: two results have one name: {', '.join(names)}")
    return tuple(_result(name, part, place) for name, part in zip(names, parts, strict=True))


def _result(name: str, hint: Any, place: str) -> Result:
    optional, hint = _without_none(hint)
    declared = _declared(hint)
    if isinstance(declared, Array):
        return Result(name, declared, optional=optional)
    kind = {Int: int, Flag: bool, Object: object}.get(type(declared), hint)
    if kind not in (int, bool, float, str, object):
        raise DefinitionError(
            f"{place}: {name} has no declaration: annotate what is returned, None for nothing"
        )
    return Result(name, Array(), kind, optional)


def place_of(target: Any) -> str:
    """Return file and line of a function or class."""
    code = getattr(inspect.unwrap(target), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(target)}:{inspect.getsourcelines(target)[1]}"
    except (OSError, TypeError):
        return str(target.__module__)


def summary_of(target: Any, place: str) -> str:
    """Return the first sentence of the docstring (DefinitionError)."""
    text = inspect.getdoc(target)
    if not text:
        raise DefinitionError(f"{place}: {target.__name__} has no docstring: say what it computes")
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")
