"""Definitions of operations, read from the signature of a reference.

`@operation` reads the declarations in a function's signature, or in those of a class's methods,
and lets each call check its arguments first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, overload

from .model import Argument, Definition, DefinitionError, Result, Values
from .reading import Added, check_added, place_of, read_signature, summary_of

_Defined = TypeVar("_Defined", bound=Callable[..., Any])
DEFINITION = "__attnproof_definition__"
"""Attribute of a decorated function or class with its `Definition`."""
_OURS = f"{__name__.split('.')[0]}.reference."
_built_in: dict[str, Definition] = {}


def built_in_definition(name: str) -> Definition:
    """Return the definition of an operation of attnproof, whatever has replaced its reference."""
    return _built_in[name]


def definition_of(defined: Any) -> Definition | None:
    """Return the definition of a decorated function or class, None for any other object."""
    definition = getattr(defined, DEFINITION, None)
    return definition if isinstance(definition, Definition) else None


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
    values: Mapping[str, Callable[[Values], Any]] | None = None,
    choices: Mapping[str, tuple[Any, ...]] | None = None,
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
    values: Mapping[str, Callable[[Values], Any]] | None = None,
    choices: Mapping[str, tuple[Any, ...]] | None = None,
) -> Any:
    """Define an operation by its reference: a function, or a class whose methods are steps.

    `name` is the name that candidates offer, by default that of the function. `results` are the
    names of the elements of a returned tuple. `requires` are functions of some of the arguments,
    by their names; each yields (argument, wrong, expected) for a condition on CPU tensors: `wrong`
    is a bool or a mask of the argument's elements, and where it is true the call raises
    MetadataError. A condition may also raise an error itself, with the name of its argument
    `operation`. Its argument `sizes` is the size of each axis: a condition on sizes alone holds on
    any device.
    `independent` says that a row's results do not depend on other rows. `state` are the attributes
    of a class to compare after each step. `values` are functions by the name of an argument or axis
    that follows from others: of `Values` to an `np.ndarray`, an int, or None for an argument that
    is left out. `choices` are parameters of the cases, by name, that `Values.params` has: their
    values, the usual one first.

    Each call checks its arguments and raises TypeError or MetadataError before the function runs.
    Raise DefinitionError for a signature that declares too little, or a call that returns
    something else than it declares.
    """

    def decorate(target: Any) -> Any:
        own = name or target.__name__
        added = Added(requires, values or {}, choices or {})
        if inspect.isclass(target):
            if results or independent:
                raise DefinitionError(
                    f"{place_of(target)}: class {own}: results and independent are for functions"
                )
            return _decorated_class(target, own, added, state)
        definition = read_signature(
            target, own, own, added, results=results, independent=independent
        )
        check_added(f"{definition.place}: {own}", added, (definition,))
        if target.__module__.startswith(_OURS):
            _built_in[own] = definition
        return checking(target, definition)

    return decorate if defined is None else decorate(defined)


def _decorated_class(target: Any, name: str, added: Added, state: tuple[str, ...]) -> Any:
    """Set the definition of a class, and let its methods check their arguments."""
    initializer = vars(target).get("__init__")
    names = inspect.signature(initializer).parameters if initializer is not None else ()
    of_methods = replace(added, opened=frozenset(names) - {"self"})
    methods = []
    for attribute, value in list(vars(target).items()):
        if inspect.isfunction(value) and not attribute.startswith("_"):
            method = read_signature(value, attribute, f"{name}.{attribute}", of_methods, bound=True)
            setattr(target, attribute, checking(value, method, bound=True))
            methods.append(method)
    place = place_of(target)
    if not methods:
        raise DefinitionError(f"{place}: class {name} has no public method, which would be a step")
    opened: tuple[Argument, ...] = ()
    parts = tuple(methods)
    if initializer is not None:
        initial = read_signature(initializer, "__init__", name, added, bound=True)
        target.__init__ = checking(initializer, initial, bound=True)
        opened = initial.arguments
        parts = (initial, *methods)
    check_added(f"{place}: {name}", added, parts)
    definition = Definition(
        name,
        summary_of(target, place),
        place,
        target,
        opened,
        (),
        methods=tuple(methods),
        state=state,
        values=added.values,
        choices=added.choices,
    )
    setattr(target, DEFINITION, definition)
    return target


def checking(function: Any, definition: Definition, *, bound: bool = False) -> Any:
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


__all__ = [
    "Argument",
    "Definition",
    "DefinitionError",
    "Result",
    "Values",
    "definition_of",
    "operation",
]
