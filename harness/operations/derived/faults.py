"""Faults that follow from a definition: arguments of another type, dtype, shape, range or memory.

They ask the call of a case, not its parameters, which an operation may have of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import metadata_faults, wrong_type
from attnproof.harness.operations.shared.overlap import overlaps
from attnproof.reference.definition.checking import check
from attnproof.reference.definition.definition import Argument, Definition, definition_of
from attnproof.reference.definition.roles import (
    INTEGERS,
    Array,
    Bound,
    Int,
    Metadata,
    Object,
    size_of,
)
from attnproof.reference.interface.metadata import BatchFields

_FLOATS = (torch.float32, torch.float16, torch.float64)
_MOST_CASES = 512
"""Cases whose arguments are remembered: each fault asks about all edge cases."""
Prepare = Callable[[Case, int, str], Call]


def _shape_of(value: Any) -> torch.Size | None:
    if isinstance(value, BatchFields):
        return torch.Size((value.num_reqs, int(value.query_start_loc_cpu[-1])))
    return None if value is None else getattr(value, "shape", torch.Size())


class _Arguments:
    """Shapes of the arguments of a case's call."""

    def __init__(self, definition: Definition, prepare: Prepare) -> None:
        self._definition, self._prepare = definition, prepare
        self._known: OrderedDict[int, tuple[Case, dict[str, torch.Size | None]]] = OrderedDict()
        self._longer = {
            argument.name: argument.declared.sizes[0]
            for argument in definition.arguments
            if isinstance(argument.declared, Array) and argument.declared.longer
        }

    def of(self, case: Case) -> dict[str, torch.Size | None]:
        """Return the shape of each argument but None; of arrays that may be longer what is used.

        That of metadata are its requests and its tokens, that of any other argument is ().
        """
        if id(case) not in self._known:
            call = self._prepare(case, 0, "cpu")
            arguments = call.args | call.kwargs
            shapes = {name: _shape_of(value) for name, value in arguments.items()}
            sizes = check(self._definition, arguments) if self._longer else {}
            for name, size in self._longer.items():
                shape = shapes[name]
                if shape is not None and (not size.axis or size.axis in sizes):
                    shapes[name] = torch.Size((size.value(sizes), *shape[1:]))
            # The case is kept, so that its id stays its own.
            self._known[id(case)] = case, shapes
            if len(self._known) > _MOST_CASES:
                self._known.popitem(last=False)
        return self._known[id(case)][1]

    def has(self, argument: Argument, case: Case) -> bool:
        """True if the call of the case has the argument."""
        shape = self.of(case).get(argument.name)
        declared = argument.declared
        is_none = isinstance(declared, Array) and declared.or_empty and shape and not shape.numel()
        return shape is not None and not is_none

    def has_columns(self, argument: Argument, case: Case) -> bool:
        """True if the argument has several elements in its last dimension."""
        shape = self.of(case).get(argument.name)
        if shape is None or not shape.numel():
            return False
        declared = argument.declared
        is_flat = isinstance(declared, Array) and declared.column
        return shape.numel() > 1 if is_flat else shape[-1] > 1

    def has_entries(self, argument: Argument, case: Case) -> bool:
        """True if the argument has an element."""
        return self.entries(argument, case) > 0

    def entries(self, argument: Argument, case: Case) -> int:
        """Return the number of elements of an argument that the call has."""
        shape = self.of(case).get(argument.name)
        return 0 if shape is None else shape.numel()


def faults_of(defined: Any, prepare: Prepare) -> dict[str, Fault]:
    """Return the generic faults by name, of a definition or of a reference with one.

    `prepare` returns the call of a case, which may be one that is not derived.
    """
    definition = defined if isinstance(defined, Definition) else definition_of(defined)
    assert definition is not None, f"{defined.__name__} is not defined by its signature"
    arguments = _Arguments(definition, prepare)
    return {
        f"{argument.name}: {name}": fault
        for argument in definition.arguments
        for name, fault in _of_argument(definition, argument, arguments)
    }


def _of_argument(
    definition: Definition, argument: Argument, arguments: _Arguments
) -> Iterator[tuple[str, Fault]]:
    declared, field = argument.declared, argument.name
    present = partial(arguments.has, argument)
    if isinstance(declared, Metadata):
        yield "another type", wrong_type(field, "metadata")
        yield from _of_metadata(argument, declared, arguments)
        return
    if not isinstance(declared, Object) or declared.kinds:
        yield "another type", wrong_type(field, applies=present)
    if isinstance(declared, Int):
        yield from _of_number(definition, argument, declared, present)
    if not isinstance(declared, Array):
        return
    yield from _of_dtypes(definition, argument, declared, arguments)
    if not declared.has_any_shape:
        yield "a dimension more", Fault(field, lambda tensor: tensor[None], applies=present)
    others = _of_the_same_length(definition, argument)
    if others:

        def contradicted(case: Case) -> bool:
            return present(case) and any(arguments.has(other, case) for other in others)

        # Which of two arguments that contradict each other is named depends on their order.
        yield "an entry more", Fault(field, _longer, applies=contradicted, any_field=True)
    if declared.dense:
        several = partial(arguments.has_columns, argument)
        yield "gaps", Fault(field, partial(_with_gaps, declared), applies=several)
    if declared.longer and _is_determined(definition, declared.sizes[0].axis):
        yield "an entry too few", _too_short(definition, argument, arguments)
    if declared.written:
        yield from _of_memory(definition, argument, arguments, declared)
    if declared.is_read and declared.role not in ("flags", "data"):
        yield from _of_values(field, declared, partial(arguments.has_entries, argument))


def _of_dtypes(
    definition: Definition, argument: Argument, declared: Array, arguments: _Arguments
) -> Iterator[tuple[str, Fault]]:
    field, present = argument.name, partial(arguments.has, argument)
    other = next((dtype for dtype in _FLOATS if dtype not in declared.dtypes), None)
    if other is not None:
        yield "float", Fault(field, partial(_to, other), applies=present)
    integers = [dtype for dtype in INTEGERS if dtype not in declared.dtypes]
    if len(integers) == 1:
        name = str(integers[0]).removeprefix("torch.")
        yield name, Fault(field, partial(_to, integers[0]), applies=present)
    if declared.dtype_of:
        same = next(a for a in definition.arguments if a.name == declared.dtype_of)

        def both(case: Case) -> bool:
            return present(case) and arguments.has(same, case)

        yield (
            f"not of the dtype of {same.name}",
            Fault(field, partial(_to_another, declared.dtypes), applies=both),
        )


def _of_metadata(
    argument: Argument, declared: Metadata, arguments: _Arguments
) -> Iterator[tuple[str, Fault]]:
    """Yield the faults of metadata, of calls whose batch has tokens."""
    faults = metadata_faults(
        argument.name, sequences=declared.sequences, logits=declared.logits, rows=declared.rows
    )
    for name, fault in faults.items():
        yield name, replace(fault, applies=partial(_both, fault, argument, arguments))


def _both(fault: Fault, argument: Argument, arguments: _Arguments, case: Case) -> bool:
    return fault.applies(case) and arguments.has_entries(argument, case)


def _of_number(
    definition: Definition, argument: Argument, declared: Int, present: Callable[[Case], bool]
) -> Iterator[tuple[str, Fault]]:
    field, limit = argument.name, declared.below
    if isinstance(declared.least, int):
        below = declared.least - 1
        yield f"below {declared.least}", Fault(field, lambda _: below, applies=present)
    else:
        measured = [a for a in definition.arguments if _measures(a, declared.least)][:1]
        for arg in measured:
            less = Fault(field, lambda _, array: len(array) - 1, applies=present, reads=(arg.name,))
            yield f"below {declared.least}", less
    if isinstance(limit, int):
        yield f"at {limit}", Fault(field, lambda _: limit, applies=present)
    elif any(other.name == limit for other in definition.arguments):
        at_limit = Fault(field, lambda _, value: value, applies=present, reads=(str(limit),))
        yield f"at {limit}", at_limit


def _measures(argument: Argument, axis: Bound) -> bool:
    """True for an array whose length is the axis, whatever the case."""
    declared = argument.declared
    if not isinstance(declared, Array) or argument.optional or declared.longer or declared.or_empty:
        return False
    return declared.sizes[:1] == (size_of(axis),)


def _of_values(
    field: str, declared: Array, present: Callable[[Case], bool]
) -> Iterator[tuple[str, Fault]]:
    """Yield faults of single elements, which a check reads on the CPU only."""

    def with_first(value: int) -> Fault:
        return Fault(field, partial(_with_first, value), applies=present, cpu_only=True)

    least = declared.smallest
    ranges = [torch.iinfo(dtype) for dtype in declared.dtypes]
    if isinstance(least, int) and least > max(span.min for span in ranges):
        yield f"an entry below {least}", with_first(least - 1)
    if isinstance(declared.below, int) and declared.below <= min(span.max for span in ranges):
        yield f"an entry of {declared.below}", with_first(declared.below)
    if declared.role == "query offsets":
        yield "first offset 1", with_first(1)


def _is_determined(definition: Definition, axis: str) -> bool:
    """True unless only `values` say an axis: then no check knows it."""
    arrays = [a.declared for a in definition.arguments if isinstance(a.declared, Array)]
    said = {size.axis for array in arrays for size in array.sizes[array.longer :]}
    return axis in said or axis not in definition.values


def _too_short(definition: Definition, argument: Argument, arguments: _Arguments) -> Fault:
    """Return the fault of an array that is one entry shorter than it must be."""
    names = [parameter.name for parameter in definition.arguments]
    others = tuple(name for name in names if name != argument.name)
    declared = argument.declared
    assert isinstance(declared, Array)
    first = declared.sizes[0]

    def needed(values: dict[str, Any]) -> int:
        return first.value(check(definition, values))

    def cut(value: torch.Tensor, *rest: Any) -> torch.Tensor:
        values = dict(zip(others, rest, strict=True)) | {argument.name: value}
        return value[: needed(values) - 1]

    applies = partial(arguments.has_entries, argument)
    # Only the CPU knows the number of tokens.
    return Fault(argument.name, cut, applies=applies, cpu_only=first.axis == "T", reads=others)


def _of_memory(
    definition: Definition, argument: Argument, arguments: _Arguments, declared: Array
) -> Iterator[tuple[str, Fault]]:
    """Yield faults of a written array that shares an element with another one.

    With several others each is at one end only: a check that looks at a pair looks at both ends.
    """
    place = definition.arguments.index(argument)
    others = [
        (other, other.declared)
        for index, other in enumerate(definition.arguments)
        if isinstance(other.declared, Array)
        and other is not argument
        and other.declared.on_cpu is declared.on_cpu
        and (index > place or not other.declared.written)
    ]
    for index, (other, of_other) in enumerate(others):
        # Arrays of one element that share it are in the same memory, which may be allowed.
        least = 2 if declared.may_be == other.name else 1

        def both(case: Case, other: Argument = other, least: int = least) -> bool:
            return all(arguments.entries(array, case) >= least for array in (argument, other))

        faults = [*overlaps(argument.name, other.name, lambda out: out, both).items()]
        for name, fault in faults if len(others) == 1 else faults[index % 2 :][:1]:
            # Of two written arrays that overlap either may be named.
            text = name.removeprefix(f"{argument.name} ")
            yield text, replace(fault, any_field=of_other.written)


def _of_the_same_length(definition: Definition, argument: Argument) -> list[Argument]:
    """Return the other arguments that determine the first dimension too."""
    declared = argument.declared
    if not isinstance(declared, Array) or declared.longer or not declared.sizes:
        return []
    axis, same_length = declared.sizes[0].axis, []
    for candidate in definition.arguments:
        other = candidate.declared
        if candidate is argument or not isinstance(other, Array) or other.longer or other.or_empty:
            continue
        if any(size.axis == axis for size in other.sizes):
            same_length.append(candidate)
    return same_length


def _to(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype)


def _to_another(dtypes: tuple[torch.dtype, ...], tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(next(dtype for dtype in dtypes if dtype is not tensor.dtype))


def _with_gaps(declared: Array, tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.flatten() if declared.column else tensor
    return torch.stack([tensor, tensor], -1).flatten(-2)[..., ::2]


def _longer(tensor: torch.Tensor) -> torch.Tensor:
    more = tensor[-1:] if len(tensor) else tensor.new_zeros((1, *tensor.shape[1:]))
    return torch.cat([tensor, more])


def _with_first(value: int, tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[:1] = value
    return changed
