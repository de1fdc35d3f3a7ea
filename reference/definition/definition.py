"""Definitions of operations, read from the signature of a reference.

`@operation` reads the declarations in a function's signature, or in those of a class's methods,
and lets each call check its arguments first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, overload

import torch

from .roles import (
    BY_VALUES,
    CUT_AXES,
    Amount,
    Array,
    Bound,
    Declaration,
    Flag,
    Int,
    Object,
    Role,
    size_of,
)

_Defined = TypeVar("_Defined", bound=Callable[..., Any])
DEFINITION = "__attnproof_definition__"
"""Attribute of a decorated function or class with its `Definition`."""
_PLAIN: dict[Any, Declaration] = {int: Int(), bool: Flag()}
"""Declarations of arguments without one."""
_DTYPES_OF: dict[str, tuple[torch.dtype, ...]] = {
    "flags": (torch.bool,),
    "data": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Dtypes of the other roles."""
_UNDECLARED = object()
"""Annotation of a result without one."""


class DefinitionError(Exception):
    """A definition that says too little or contradicts itself; its message begins with a place."""


@dataclass(frozen=True)
class Argument:
    """A parameter of an operation."""

    name: str
    declared: Declaration
    optional: bool = False
    """True if it may be None."""
    keyword_only: bool = False
    default: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Result:
    """A returned array."""

    name: str
    declared: Array
    kind: type = torch.Tensor
    """Its class: `torch.Tensor`, or that of a number or object, which `declared` is not about."""
    optional: bool = False
    """True if it may be None."""


@dataclass(frozen=True)
class Definition:
    """Arguments and results of a function, and of the methods of a class."""

    name: str
    summary: str
    """First sentence of the docstring."""
    place: str
    """File and line of the function."""
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    requires: tuple[Callable[..., Any], ...] = ()
    """Further conditions on the arguments; see `operation`."""
    independent: bool = False
    """True if the results of a row do not depend on the other rows."""
    methods: tuple[Definition, ...] = ()
    """Steps of a class; its own arguments are those of `__init__`."""
    state: tuple[str, ...] = ()
    """Attributes of a class that are compared after each step."""

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """Signature of the function."""
        return inspect.signature(self.function)

    @property
    def has_batch(self) -> bool:
        """True if a batch determines some argument."""
        declared = (one.declared for one in self.every_argument)
        return any(one.follows_batch for one in declared)

    @property
    def has_conditions(self) -> bool:
        """True if arguments that are each as declared may be refused together."""
        declared = [one.declared for one in self.arguments]
        bounds = [(one, bound) for one in declared for bound in (one.least, one.below)]
        return (
            bool(self.requires)
            or any(isinstance(one, Array) and one.distinct for one in declared)
            or any(isinstance(bound, str) for _, bound in bounds)
            or any(bound is not None and _narrows(one, bound) for one, bound in bounds)
        )

    @property
    def has_results(self) -> bool:
        """True if something is returned or written, or is state."""
        declared = [one.declared for one in self.every_argument]
        written = any(isinstance(one, Array) and one.written for one in declared)
        returned = self.results or any(method.results for method in self.methods)
        return bool(returned or self.state or written)

    @property
    def every_argument(self) -> Iterator[Argument]:
        """The arguments, and those of the methods."""
        yield from self.arguments
        for method in self.methods:
            yield from method.arguments


def _narrows(declared: Declaration, bound: Bound) -> bool:
    """True for a limit that some batch does not keep."""
    return declared.follows_batch and bound not in (0, 1 if _is_block_size(declared) else 0)


def _is_block_size(declared: Declaration) -> bool:
    return isinstance(declared, Int) and declared.amount == "block size"


_OURS = f"{__name__.split('.')[0]}.reference."
_built_in: dict[str, Definition] = {}


def built_in_definition(name: str) -> Definition:
    """Return the definition of an operation of attnproof, whatever has replaced its reference."""
    return _built_in[name]


def definition_of(defined: Any) -> Definition | None:
    """Return the definition of a decorated function or class, None for any other object."""
    found = getattr(defined, DEFINITION, None)
    return found if isinstance(found, Definition) else None


@overload
def operation(defined: _Defined, /) -> _Defined: ...
@overload
def operation(
    *,
    name: str = "",
    results: tuple[str, ...] = (),
    requires: tuple[Callable[..., Any], ...] = (),
    independent: bool = False,
    state: tuple[str, ...] = (),
) -> Callable[[_Defined], _Defined]: ...
def operation(
    defined: Any = None,
    /,
    *,
    name: str = "",
    results: tuple[str, ...] = (),
    requires: tuple[Callable[..., Any], ...] = (),
    independent: bool = False,
    state: tuple[str, ...] = (),
) -> Any:
    """Define an operation by its reference: a function, or a class whose methods are steps.

    `name` is the name that candidates offer, by default that of the function. `results` are the
    names of the elements of a returned tuple. `requires` are functions of some of the arguments,
    by their names; each yields (argument, wrong, expected) for a condition on CPU tensors: `wrong`
    is a bool or a mask of the argument's elements, and where it is true the call raises
    MetadataError. A condition may also raise an error itself, with the name of its argument
    `operation`. `independent` says that a row's results do not depend on other rows. `state`
    are the attributes of a class to compare after each step.

    Each call checks its arguments and raises TypeError or MetadataError before the function runs.
    Raise DefinitionError for a signature that declares too little, or a call that returns
    something else than it declares.
    """

    def decorate(target: Any) -> Any:
        own = name or target.__name__
        if inspect.isclass(target):
            if results or independent:
                raise DefinitionError(
                    f"{_place(target)}: class {own}: results and independent are for functions"
                )
            return _decorated_class(target, own, requires, state)
        definition = _read(target, own, own, results, requires, independent=independent)
        _check_conditions(f"{definition.place}: {own}", requires, (definition,))
        if target.__module__.startswith(_OURS):
            _built_in[own] = definition
        return _checking(target, definition)

    return decorate if defined is None else decorate(defined)


def _decorated_class(
    target: Any, name: str, requires: tuple[Callable[..., Any], ...], state: tuple[str, ...]
) -> Any:
    """Set the definition of a class, and let its methods check their arguments."""
    methods = []
    for attribute, value in list(vars(target).items()):
        if inspect.isfunction(value) and not attribute.startswith("_"):
            method = _read(value, attribute, f"{name}.{attribute}", (), requires, bound=True)
            setattr(target, attribute, _checking(value, method, bound=True))
            methods.append(method)
    place = _place(target)
    if not methods:
        raise DefinitionError(f"{place}: class {name} has no public method, which would be a step")
    made = vars(target).get("__init__")
    opened: tuple[Argument, ...] = ()
    parts = tuple(methods)
    if made is not None:
        initial = _read(made, "__init__", name, (), requires, bound=True)
        target.__init__ = _checking(made, initial, bound=True)
        opened = initial.arguments
        parts = (initial, *methods)
    _check_conditions(f"{place}: {name}", requires, parts)
    definition = Definition(
        name, _summary(target, place), place, target, opened, (), (), False, tuple(methods), state
    )
    setattr(target, DEFINITION, definition)
    return target


def _checking(function: Any, definition: Definition, *, bound: bool = False) -> Any:
    """Return the function, which checks its arguments first."""
    from .checking import check, check_results

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        values = definition.signature.bind(*args, **kwargs)
        values.apply_defaults()
        sizes = check(definition, values.arguments)
        returned = function(*args, **kwargs)
        check_results(definition, returned, sizes)
        return returned

    if not bound:
        setattr(checked, DEFINITION, definition)
    return checked


def _read(
    function: Any,
    name: str,
    named: str,
    results: tuple[str, ...],
    requires: tuple[Callable[..., Any], ...],
    *,
    independent: bool = False,
    bound: bool = False,
) -> Definition:
    """Return the definition in a signature; raise DefinitionError."""
    place = _place(function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # a name that is not imported
        raise DefinitionError(
            f"{place}: {named}: its annotations cannot be read: {error}"
        ) from None
    parameters = [*inspect.signature(function).parameters.values()][int(bound) :]
    arguments = tuple(
        _argument(one, hints.get(one.name), f"{place}: {named}") for one in parameters
    )
    names = {one.name for one in arguments}
    used = tuple(one for one in requires if _parameters(one) <= names)
    definition = Definition(
        name,
        "" if bound else _summary(function, place),
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
    )
    _check_axes(definition, f"{place}: {named}", bound=bound)
    written = {a.name for a in arguments if isinstance(a.declared, Array) and a.declared.written}
    for result in definition.results:
        if result.name in written:
            raise DefinitionError(
                f"{place}: {named}: {result.name} is an argument that is written: name the result "
                "otherwise with @operation(results=(...,))"
            )
    return definition


def _parameters(condition: Callable[..., Any]) -> set[str]:
    return {*inspect.signature(condition).parameters} - {"operation"}


def _check_conditions(
    place: str, requires: tuple[Callable[..., Any], ...], parts: tuple[Definition, ...]
) -> None:
    """Raise DefinitionError for a condition that no call has the arguments of."""
    names = {one.name for part in parts for one in part.arguments}
    for condition in requires:
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
        found = [one for one in hint.__metadata__ if isinstance(one, Declaration)]
        if found and found[-1] == Object():
            plain = get_args(hint)[0]
            kinds = get_args(plain) if isinstance(plain, UnionType) else (plain,)
            return Object(tuple(get_origin(kind) or kind for kind in kinds))
        return found[-1] if found else None
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


def _check_axes(definition: Definition, place: str, *, bound: bool) -> None:
    """Raise DefinitionError for a size that nothing determines, or that two arguments say."""
    known = set(CUT_AXES if definition.has_batch else ())
    said, roles = dict[str, str](), dict[str, str]()
    for argument in definition.arguments:
        declared, where = argument.declared, f"{place}: {argument.name}"
        _check_meaning(declared, where)
        if bound and declared.follows_batch:
            raise DefinitionError(
                f"{where} follows from a batch, and a class has none: declare "
                f"{'an int' if isinstance(declared, Int) else 'Array(shape=...)'}"
            )
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
            known |= {size.axis for size in declared.sizes if not declared.longer}
    known |= said.keys()
    for argument in definition.arguments:
        for limit in _bounds(argument.declared):
            _check_known(f"{place}: {argument.name}", limit.axis, known)
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
            listed = ", ".join(str(one).removeprefix("torch.") for one in allowed)
            raise DefinitionError(
                f"{place}: an array of {declared.role} is not of {dtype}: it may be {listed}"
            )
    if declared.tolerance and declared.role != "data":
        raise DefinitionError(f"{place}: a tolerance is for data; integers are compared exactly")


def _place(target: Any) -> str:
    """Return file and line of a function or class."""
    code = getattr(inspect.unwrap(target), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(target)}:{inspect.getsourcelines(target)[1]}"
    except (OSError, TypeError):
        return str(target.__module__)


def _summary(target: Any, place: str) -> str:
    text = inspect.getdoc(target)
    if not text:
        raise DefinitionError(f"{place}: {target.__name__} has no docstring: say what it computes")
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


__all__ = [
    "Argument",
    "Definition",
    "DefinitionError",
    "Result",
    "definition_of",
    "operation",
]
