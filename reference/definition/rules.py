"""Checks of a definition: each axis has a size, each limit a value, each role one argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import torch

from .model import Argument, Definition, DefinitionError
from .roles import (
    BY_VALUES,
    CUT_AXES,
    POOL_AXES,
    Amount,
    Array,
    Declaration,
    Flag,
    Int,
    Object,
    Role,
    size_of,
)

_DTYPES_OF: dict[str, tuple[torch.dtype, ...]] = {
    "flags": (torch.bool,),
    "data": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""Dtypes of the other roles."""


def check_axes(definition: Definition, place: str, opened: frozenset[str]) -> None:
    """Raise DefinitionError for a size that nothing determines, or that two arguments say."""
    known = set(CUT_AXES if definition.has_batch else ())
    said, roles = dict[str, str](), dict[str, str]()
    notes = _notes(definition, opened)
    for argument in definition.arguments:
        declared, where = argument.declared, f"{place}: {argument.name}"
        _check_meaning(declared, where)
        _check_limits(declared, where)
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
    # `values` compute the others of an array that may be longer.
    known |= said.keys() | (definition.values.keys() & _axes_of(definition))
    _check_spelling(definition, known, place)
    for argument in definition.arguments:
        for limit in _bounds(argument.declared):
            _check_known(f"{place}: {argument.name}", limit.axis, known, notes)
        _check_dtype_of(argument, definition, place)
        for size in argument.declared.sizes if isinstance(argument.declared, Array) else ():
            _check_known(f"{place}: {argument.name}", size.axis, known - {BY_VALUES}, notes)
    for result in definition.results:
        _check_meaning(result.declared, f"{place}: {result.name}")
        _check_limits(result.declared, f"{place}: {result.name}")
        _check_sizes(result.declared, f"{place}: {result.name}")
        for size in result.declared.sizes:
            _check_known(f"{place}: {result.name}", size.axis, {*known, BY_VALUES}, notes)


def _axes_of(definition: Definition) -> set[str]:
    declared = [argument.declared for argument in definition.arguments]
    return {size.axis for array in declared if isinstance(array, Array) for size in array.sizes}


def _notes(definition: Definition, opened: frozenset[str]) -> dict[str, str]:
    """Return why names determine no size, by name: those of __init__, and of longer arrays."""
    notes = {
        name: f"{name} is an argument of __init__: limits and shapes of a method name its own "
        "arguments, and it refuses other values with MetadataError"
        for name in opened
    }
    for argument in definition.arguments:
        declared = argument.declared
        for size in declared.sizes[:1] if isinstance(declared, Array) and declared.longer else ():
            notes[size.axis] = (
                f"nothing determines the size {size.axis}: {argument.name} may be longer; name it "
                f"in the shape of another argument or in values, or declare Int('axis', "
                f"axis={size.axis!r})"
            )
    return notes


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


def _check_known(place: str, axis: str, known: set[str], notes: dict[str, str]) -> None:
    """Raise DefinitionError for an axis that is not known, with the note on it if there is one."""
    if axis and axis not in known:
        listed = ", ".join(sorted(known - {"", BY_VALUES}))
        usual = (
            f"nothing determines the size {axis}: name it in the shape of an argument, or declare "
            f"an integer Int('axis', axis={axis!r}); known: {listed}; a result may have '?'"
        )
        raise DefinitionError(f"{place}: {notes.get(axis, usual)}")


def _check_spelling(definition: Definition, known: set[str], place: str) -> None:
    """Raise DefinitionError for two axes whose names differ in case only."""
    arrays = [arg.declared for arg in definition.arguments if isinstance(arg.declared, Array)]
    pool = POOL_AXES if any(array.role == "slot pool" for array in arrays) else ()
    # An integer n may well be beside an axis N, whose size it is.
    numbers = {arg.name for arg in definition.arguments if isinstance(arg.declared, Int)}
    spelt: dict[str, str] = {}
    for axis in sorted({*known, *pool} - numbers):  # capitals first
        near = spelt.setdefault(axis.lower(), axis)
        if near != axis:
            raise DefinitionError(
                f"{place}: {axis} is another axis than {near}: did you mean {near}?"
            )


def _check_limits(declared: Declaration, place: str) -> None:
    """Raise DefinitionError for limits that are no sizes, or that no value keeps."""
    try:
        tuple(_bounds(declared))
    except ValueError as error:
        raise DefinitionError(f"{place}: {error}") from None
    low, high = declared.least, declared.below
    if isinstance(declared, Array):
        low, high = declared.smallest, declared.limit
    if low is None or high is None:
        return
    least, below = size_of(low), size_of(high)
    if least[:2] == below[:2] and least.more >= below.more:
        raise DefinitionError(f"{place}: no value is at least {low} and below {high}")


def _bounds(declared: Declaration) -> Iterator[Any]:
    for bound in (declared.least, declared.below):
        if bound is not None:
            yield size_of(bound)


def _check_sizes(declared: Array, place: str) -> None:
    try:
        tuple(declared.sizes)
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
