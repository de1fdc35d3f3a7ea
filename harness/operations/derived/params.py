"""Parameters of the cases of a defined operation: what its batch does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.real import real_batch
from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.operations.shared.params import Few, Numbers, Params
from attnproof.reference.definition.definition import Argument, Definition
from attnproof.reference.definition.roles import (
    CUT_AXES,
    POOL_AXES,
    Array,
    Bound,
    Flag,
    Int,
    size_of,
)

_MOST, _LEAST = 2**31 - 1, -(2**31)
_SIZES = (3, 0, 1, 2, 4, 31, 32, 33, 127, 128, 129, 257, 1023, 1024, 1025, 2500)
"""Sizes of an axis, those beside the tiles of kernels (K19) among them; the first is usual."""
_DRAWN_SIZES = 9
_SPARES = (0, 1, 4, 9)
"""Numbers of entries beyond those that are needed."""
_PADDINGS = (*_SPARES, 70, 1030)
"""Amounts by which a number is above the size of an axis: padding of more than one tile too."""
_SEEDS = (1, 0, 2)
_LONGEST = 8
"""Numbers drawn of an array, which they fill in turn."""
_FLOATS = (1.0, 0.0, -1.5, 0.1, -0.001, 300.0, 7.25)
ORDER, SPARE, LAYOUT, BATCH = "order", "spare", "layout", "batch"
_TAKEN = frozenset({ORDER, SPARE, LAYOUT, BATCH, "do", "steps"})
"""Names of parameters that are no argument."""


class Layout(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Memory layout of the arguments of a case."""

    step: Annotated[int, Meta(ge=1, le=4)] = 1
    """Words from an element to the next one."""
    gap: Annotated[int, Meta(ge=0, le=64)] = 0
    """Words between the rows of an array."""
    alone: bool = False
    """True if each array has a storage of its own."""
    backwards: bool = False
    """True if the last array comes first where they touch."""
    offset: Annotated[int, Meta(ge=0, le=7)] = 0
    """Storage offset of the first array in words, from a multiple of eight."""
    other_dtypes: bool = False
    """True if arrays that may have one of several dtypes, whatever the batch, have the last."""


LAYOUTS = (
    Layout(),
    Layout(alone=True),
    Layout(backwards=True),
    Layout(offset=3),
    Layout(gap=3),
    Layout(step=2),
    Layout(other_dtypes=True),
    Layout(step=2, gap=3, offset=1, other_dtypes=True),
)


class Parameter(NamedTuple):
    """A parameter of the cases: its type, and values that are always run, the usual one first."""

    kind: Any
    values: tuple[Any, ...]
    drawn: st.SearchStrategy[Any]


@dataclass(frozen=True)
class Form:
    """A definition, and what its cases have beside the derived."""

    definition: Definition
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Function from the other values (`arguments.Values`) to that of an argument or axis, by name.

    Of an array an `np.ndarray`, or None without; of a written one what it holds before."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Parameters that `values` read."""


def form_of(
    definition: Definition,
    values: Mapping[str, Callable[[Any], Any]] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
) -> Form:
    """Return the form of a definition, with further values and parameters."""
    axes = set(free_axes(definition))
    names = axes | {argument.name for argument in definition.arguments}
    own = {name: of for name, of in definition.values.items() if name in names}
    chosen = {name: _choice(values) for name, values in definition.choices.items()}
    return Form(definition, {**own, **(values or {})}, {**chosen, **(parameters or {})})


def _choice(values: tuple[Any, ...]) -> Parameter:
    kind = type(values[0])
    return one_of(kind if kind in (bool, float) else Literal[values], *values)


def one_of(kind: Any, *values: Any, means: str = "") -> Parameter:
    """Return a parameter with one of the values, the usual one first, and what it `means`."""
    described = Annotated[kind, Meta(description=means)] if means else kind
    return Parameter(described, values, st.sampled_from(values))


def mostly(kind: Any, usual_value: Any, *others: Any) -> Parameter:
    """Return a parameter that has the usual value in most of the drawn cases."""
    values = (usual_value, *others)
    return Parameter(kind, values, st.sampled_from((usual_value,) * len(values) + others))


def key_of(argument: Argument) -> str:
    """Return the name of the argument's parameter."""
    name = argument.name
    is_taken = name in _TAKEN or name.startswith(("size_", "with_"))
    return f"{name}_" if is_taken else name


def in_place(declared: Array) -> str:
    """Return the name of the parameter that puts an array into the memory of another one."""
    return f"{declared.may_be}_in_place"


def parameters_of(form: Form, *, method: bool = False) -> dict[str, Parameter]:
    """Return the parameters of a function's cases, or those of a step of a class."""
    definition, parameters = form.definition, dict[str, Parameter]()
    shapes = _names_in_shapes(definition)
    free = [a for a in definition.arguments if a.name not in form.values]
    for argument in definition.arguments:
        if argument.optional or (
            isinstance(argument.declared, Array) and argument.declared.or_empty
        ):
            parameters[f"with_{argument.name}"] = _flag(True)
        if isinstance(argument.declared, Array) and argument.declared.may_be:
            parameters[in_place(argument.declared)] = _flag(False)
        if argument in free:
            parameters |= dict(_of_argument(argument, is_size=argument.name in shapes))
    for axis in free_axes(definition):
        if axis not in form.values:
            parameters[f"size_{axis}"] = _sized(0)
    parameters |= form.parameters
    if any(isinstance(a.declared, Array) and a.declared.distinct for a in free):
        parameters[ORDER] = Parameter(Count, _SEEDS, st.integers(0, 2**16))
    for argument in free if method else ():
        if isinstance(argument.declared, Array) and argument.declared.distinct:
            # First elements of an array that has others by `order`.
            parameters[key_of(argument)] = Parameter(Numbers, ([],), st.just([]))
    if any(isinstance(a.declared, Array) and a.declared.longer for a in definition.arguments):
        parameters[SPARE] = Parameter(Few, (0, 3), st.sampled_from((0, 3)))
    of_batch = (a for a in free if a.declared.follows_batch)
    if any(of_batch) and (method or definition.methods):
        plain_batch = msgspec.to_builtins(make_batch([1, 2, 3], [4, 0, 1], 4))
        # A row without a token in one step would make the whole case one of no engine.
        drawn_batch = batches().map(real_batch).map(msgspec.to_builtins)
        parameters[BATCH] = Parameter(Batch, (plain_batch,), drawn_batch)
    if not method:
        plain = tuple(msgspec.to_builtins(layout) for layout in LAYOUTS)
        parameters[LAYOUT] = Parameter(Layout, plain, st.sampled_from(plain))
    return parameters


def usual(parameters: dict[str, Parameter]) -> dict[str, Any]:
    """Return the usual value of each parameter."""
    return {name: parameter.values[0] for name, parameter in parameters.items()}


def params_type(parameters: dict[str, Parameter]) -> type[msgspec.Struct]:
    """Return the type of `Case.params`."""
    fields: list[Any] = [(name, p.kind) for name, p in parameters.items() if name != LAYOUT]
    if LAYOUT in parameters:
        fields.append((LAYOUT, Layout, Layout()))
    return msgspec.defstruct("Params", fields, bases=(Params,), kw_only=True)


def free_axes(definition: Definition) -> list[str]:
    """Return the axes that arrays name and that neither a batch nor an integer determines."""
    numbers = [(a.name, a.declared) for a in definition.arguments if isinstance(a.declared, Int)]
    said = {each for name, declared in numbers for each in (name, declared.axis)}
    named = (
        size.axis
        for argument in definition.arguments
        if isinstance(argument.declared, Array)
        for size in argument.declared.sizes
    )
    known = {"", *said, *(CUT_AXES if definition.has_own_batch else ())}
    if has_pool(definition):
        known |= set(POOL_AXES)
    return [axis for axis in dict.fromkeys(named) if axis not in known]


def has_pool(definition: Definition) -> bool:
    """True if an argument is a pool of requests' slots."""
    return any(map(is_slot_pool, definition.arguments))


def is_slot_pool(argument: Argument) -> bool:
    """True for a pool of requests' slots."""
    return isinstance(argument.declared, Array) and argument.declared.role == "slot pool"


def limits(declared: Int | Array, sizes: dict[str, int]) -> tuple[int, int]:
    """Return the least and the highest value of a number, or of the elements of an array."""
    smallest = declared.smallest if isinstance(declared, Array) else declared.least
    lowest = _value(smallest, sizes)
    below = _value(declared.limit if isinstance(declared, Array) else declared.below, sizes)
    least, most = _range_of(declared)
    return least if lowest is None else lowest, most if below is None else below - 1


def _value(bound: Bound | None, sizes: dict[str, int]) -> int | None:
    return None if bound is None else size_of(bound).value(sizes)


def _names_in_shapes(definition: Definition) -> set[str]:
    """Return the axes of arguments and results, names of integers among them."""
    arrays = [a.declared for a in definition.arguments if isinstance(a.declared, Array)]
    arrays += [result.declared for result in definition.results]
    return {size.axis for array in arrays for size in array.sizes}


def _of_argument(argument: Argument, *, is_size: bool) -> Iterator[tuple[str, Parameter]]:
    declared = argument.declared
    if isinstance(declared, Array) and declared.is_free:
        yield key_of(argument), _elements(declared)
    elif isinstance(declared, Flag):
        yield key_of(argument), _flag(argument.default is True)
    elif isinstance(declared, Int) and not declared.follows_batch:
        yield key_of(argument), _number(argument, declared, is_size=is_size)


def _elements(declared: Array) -> Parameter:
    """Return a list whose elements fill an array in turn."""
    if declared.role == "flags":
        flags = [[True, False], [False], [True], [False, False, True]]
        return _list_of(bool, flags, st.booleans())
    if declared.role == "data":
        floats = [list(_FLOATS[:4]), [0.0], list(_FLOATS)]
        return _list_of(float, floats, st.sampled_from(_FLOATS))
    low, high = constant_limits(declared)
    near = max(low, 0) if high >= 0 else low
    rising = [min(near + more, high) for more in (1, 0, 4, 2, 7)]
    steps = [min(near + more, high) for more in (2, 0, 4)]
    rows = [rising, steps, [low], [high], [near], [low, high], rising[:1] * 2 + [near]]
    element = Annotated[int, Meta(ge=low, le=high)]
    edges = st.sampled_from(sorted({low, near, min(near + 1, high), high}))
    return _list_of(element, rows, st.integers(near, min(near + 40, high)) | edges)


def _list_of(element: Any, rows: list[Any], drawn: st.SearchStrategy[Any]) -> Parameter:
    kind = Annotated[list[element], Meta(min_length=1, max_length=2**16)]
    kept = [row for place, row in enumerate(rows) if row not in rows[:place]]
    return Parameter(kind, tuple(kept), st.lists(drawn, min_size=1, max_size=_LONGEST))


def constant_limits(declared: Int | Array) -> tuple[int, int]:
    """Return the limits that depend on no argument; those of the dtype in place of others."""
    smallest = declared.smallest if isinstance(declared, Array) else declared.least
    below = declared.below
    least, most = _range_of(declared)
    low = smallest if isinstance(smallest, int) else least if smallest is None else 0
    return low, below - 1 if isinstance(below, int) else most


def _range_of(declared: Int | Array) -> tuple[int, int]:
    """Return the range of the narrowest dtype; that of int32 for numbers and int64."""
    if isinstance(declared, Int):
        return _LEAST, _MOST
    ranges = [torch.iinfo(dtype) for dtype in declared.dtypes]
    return max(_LEAST, *(span.min for span in ranges)), min(_MOST, *(span.max for span in ranges))


def _flag(usual_value: bool) -> Parameter:
    return Parameter(bool, (usual_value, not usual_value), st.booleans())


def _number(argument: Argument, declared: Int, *, is_size: bool) -> Parameter:
    """Return a number; one whose limits are axes is counted from its least value."""
    if isinstance(declared.least, str):
        return Parameter(
            Annotated[int, Meta(ge=0, le=2**16)], _PADDINGS, st.sampled_from((0, 0, 1, 5))
        )
    if declared.axis or is_size:
        return _sized(declared.least)
    lowest = declared.least
    highest = declared.below - 1 if isinstance(declared.below, int) else _MOST
    middle = argument.default if type(argument.default) is int else min(lowest + 1, highest)
    edges = {lowest, lowest + 1, lowest + 2, 16, 64, highest - 1, highest}
    values = dict.fromkeys([middle, *sorted(edge for edge in edges if lowest <= edge <= highest)])
    drawn = st.sampled_from([*values]) | st.integers(lowest, min(highest, lowest + 300))
    return Parameter(Annotated[int, Meta(ge=lowest, le=highest)], tuple(values), drawn)


def _sized(least: int) -> Parameter:
    values = tuple(dict.fromkeys(max(least, size) for size in _SIZES))
    drawn = st.sampled_from(values[:_DRAWN_SIZES]) | st.integers(least, least + 40)
    return Parameter(Annotated[int, Meta(ge=least, le=2**16)], values, drawn)


def why_unreal_layout(case: Case) -> str:
    """Return why no engine has the memory layout of a case, "" if one may."""
    gaps = layout_of(case).step > 1
    return "the tensors of an engine have no gaps between their elements" if gaps else ""


def layout_of(case: Case) -> Layout:
    """Return the memory layout of a case."""
    return msgspec.convert(case.params.get(LAYOUT, {}), Layout)
