"""Definitions read from the signatures of functions, and what a definition must keep to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch

from .model import Argument, Definition, DefinitionError, Result, Values
from .roles import (
    BY_VALUES,
    CUT_AXES,
    Amount,
    Array,
    Declaration,
    Flag,
    Int,
    Object,
    Role,
    size_of,
)

_PLAIN: dict[Any, Declaration] = {int: Int(), bool: Flag()}
"""Declarations of arguments without one."""
_DTYPES_OF: dict[str, tuple[torch.dtype, ...]] = {
    "flags": (torch.bool,),
    "data": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Dtypes of the other roles."""
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
    _check_axes(definition, f"{place}: {named}")
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


def _check_axes(definition: Definition, place: str) -> None:
    """Raise DefinitionError for a size that nothing determines, or that two arguments say."""
    known = set(CUT_AXES if definition.has_batch else ())
    said, roles = dict[str, str](), dict[str, str]()
    for argument in definition.arguments:
        declared, where = argument.declared, f"{place}: {argument.name}"
        _check_meaning(declared, where)
        if isinstance(declared, Int) and declared.axis:
            if declared.axis in said:
                raise DefinitionError(
                    f"{place}: axis {declared.axis} is the value of both {said[declared.axis]} "
                    f"and {argument.name}: give one of them another axis"
                )
            said[declared.axis] = argument.name
        if isinstance(declared, Int):
            known.add(argument.name)
        if isinstance(declared, Array):
            _check_sizes(declared, where)
            _check_role(argument.name, declared, roles, place)
            _check_memory(definition, declared, where)
            known |= {size.axis for size in declared.sizes[declared.longer :]}
    known |= said.keys()
    for argument in definition.arguments:
        for limit in _bounds(argument.declared):
            _check_known(f"{place}: {argument.name}", limit.axis, known)
        _check_dtype_of(argument, definition, place)
        for size in argument.declared.sizes if isinstance(argument.declared, Array) else ():
            _check_known(f"{place}: {argument.name}", size.axis, known - {BY_VALUES})
    for result in definition.results:
        _check_meaning(result.declared, f"{place}: {result.name}")
        _check_sizes(result.declared, f"{place}: {result.name}")
        for size in result.declared.sizes:
            _check_known(f"{place}: {result.name}", size.axis, {*known, BY_VALUES})


def _check_meaning(declared: Declaration, place: str) -> None:
    """Raise DefinitionError for a role or an amount that there is not."""
    if isinstance(declared, (Flag, Object)):
        return
    is_array = isinstance(declared, Array)
    known = get_args(Role if is_array else Amount)
    meaning = declared.role if isinstance(declared, Array) else declared.amount
    if meaning not in known:
        kind = "role" if is_array else "meaning of an integer"
        raise DefinitionError(f"{place}: {meaning!r} is no {kind}: {', '.join(known)}")


def _check_role(name: str, declared: Array, roles: dict[str, str], place: str) -> None:
    """Raise DefinitionError for a second name of the same values of a batch; add the first."""
    if not declared.follows_batch or declared.on_cpu:
        return
    if declared.role in roles:
        raise DefinitionError(
            f"{place}: {roles[declared.role]} and {name} are both the {declared.role} of the "
            "batch: declare one of them as numbers, or on_cpu as a mirror of the other"
        )
    roles[declared.role] = name


def _check_dtype_of(argument: Argument, definition: Definition, place: str) -> None:
    """Raise DefinitionError for the dtype of an argument that there is not before this one."""
    declared = argument.declared
    if not isinstance(declared, Array) or not declared.dtype_of:
        return
    names = [arg.name for arg in definition.arguments if isinstance(arg.declared, Array)]
    if declared.dtype_of not in names[: names.index(argument.name)]:
        raise DefinitionError(
            f"{place}: {argument.name}: {declared.dtype_of} is no array before it: dtype_of is the "
            "name of one"
        )


def _check_memory(definition: Definition, declared: Array, place: str) -> None:
    """Raise DefinitionError for an array that may be what is no argument."""
    if declared.may_be and declared.may_be not in [arg.name for arg in definition.arguments]:
        raise DefinitionError(f"{place}: may_be names {declared.may_be}, which is no argument")
    for name in ("longer", "dense"):
        if getattr(declared, name) and not declared.sizes:
            raise DefinitionError(f"{place}: {name} needs a shape with a dimension")
    if declared.may_be and not declared.written:
        raise DefinitionError(f"{place}: may_be is for an array that is written")


def _check_known(place: str, axis: str, known: set[str]) -> None:
    if axis and axis not in known:
        listed = ", ".join(sorted(known - {"", BY_VALUES}))
        raise DefinitionError(
            f"{place}: nothing determines the size {axis}: name it in the shape of an argument, or "
            f"declare an integer Int('axis', axis={axis!r}); known: {listed}; a result may have '?'"
        )


def _bounds(declared: Declaration) -> Iterator[Any]:
    for bound in (declared.least, declared.below):
        if bound is not None:
            yield size_of(bound)


def _check_sizes(declared: Array, place: str) -> None:
    try:
        tuple(declared.sizes), tuple(_bounds(declared))
    except ValueError as error:
        raise DefinitionError(f"{place}: {error}") from None
    allowed = _DTYPES_OF.get(declared.role, _INTEGERS)
    for dtype in declared.dtypes:
        if dtype not in allowed:
            listed = ", ".join(str(kind).removeprefix("torch.") for kind in allowed)
            raise DefinitionError(
                f"{place}: an array of {declared.role} is not of {dtype}: it may be {listed}"
            )
    if declared.tolerance and declared.role != "data":
        raise DefinitionError(f"{place}: a tolerance is for data; integers are compared exactly")


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
