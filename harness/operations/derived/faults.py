"""Faults that follow from a definition: arguments of another type, dtype, shape or range."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.params import Layout
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.reference.definition.definition import Argument, Definition
from attnproof.reference.definition.roles import Array, Flag, Int

_FLOATS = (torch.float32, torch.float16, torch.float64)


def faults_of(definition: Definition) -> dict[str, Fault]:
    """Return the generic faults of a function's arguments by name."""
    found: dict[str, Fault] = {}
    for argument in definition.arguments:
        for name, fault in _of_argument(definition, argument):
            found[f"{argument.name}: {name}"] = fault
    return found


def _of_argument(definition: Definition, argument: Argument) -> Iterator[tuple[str, Fault]]:
    declared, field = argument.declared, argument.name
    present = partial(_is_present, argument)
    yield "another type", wrong_type(field, applies=present)
    if isinstance(declared, Flag):
        return
    if isinstance(declared, Int):
        if isinstance(declared.least, int):
            below = declared.least - 1
            yield f"below {declared.least}", _fault(field, lambda _: below, present)
        limit = declared.below
        if isinstance(limit, int):
            yield f"at {limit}", _fault(field, lambda _: limit, present)
        elif any(one.name == limit for one in definition.arguments):
            at_limit = Fault(field, lambda _, value: value, applies=present, given=(str(limit),))
            yield f"at {limit}", at_limit
        return
    other = next((one for one in _FLOATS if one not in declared.dtypes), None)
    if other is not None:
        yield "float", _fault(field, partial(_to, other), present)
    yield "a dimension more", _fault(field, lambda tensor: tensor[None], present)
    others = _of_the_same_length(definition, argument)
    if others:
        contradicted = partial(_are_present, argument, others)
        # Which of two arguments that contradict each other is named depends on their order.
        yield "an entry more", Fault(field, _longer, applies=contradicted, any_field=True)
    if declared.written or declared.role in ("flags", "data"):
        return
    present = partial(_has_entries, definition, argument)
    least = declared.smallest
    ranges = [torch.iinfo(dtype) for dtype in declared.dtypes]
    if isinstance(least, int) and least > max(one.min for one in ranges):
        change = partial(_with_first, least - 1)
        yield f"an entry below {least}", _fault(field, change, present, cpu_only=True)
    if isinstance(declared.below, int) and declared.below <= min(one.max for one in ranges):
        change = partial(_with_first, declared.below)
        yield f"an entry of {declared.below}", _fault(field, change, present, cpu_only=True)
    if declared.role == "query offsets":
        yield "first offset 1", _fault(field, partial(_with_first, 1), present, cpu_only=True)


def _fault(field: str, change: Any, applies: Any, *, cpu_only: bool = False) -> Fault:
    return Fault(field, change, applies=applies, cpu_only=cpu_only)


def _is_present(argument: Argument, case: Case) -> bool:
    declared = argument.declared
    absent = argument.optional or (isinstance(declared, Array) and declared.or_empty)
    return not absent or bool(case.params.get(f"with_{argument.name}"))


def _has_entries(definition: Definition, argument: Argument, case: Case) -> bool:
    declared = argument.declared
    assert isinstance(declared, Array)
    sizes = Values(definition, case.batch, case.params, Layout(), 0).sizes
    return _is_present(argument, case) and all(size.value(sizes) for size in declared.sizes)


def _of_the_same_length(definition: Definition, argument: Argument) -> list[Argument]:
    """Return the other arguments that determine the first dimension too."""
    declared = argument.declared
    if not isinstance(declared, Array) or declared.longer or not declared.sizes:
        return []
    axis, found = declared.sizes[0].axis, []
    for one in definition.arguments:
        other = one.declared
        if one is argument or not isinstance(other, Array) or other.longer or other.or_empty:
            continue
        if any(size.axis == axis for size in other.sizes):
            found.append(one)
    return found


def _are_present(argument: Argument, others: list[Argument], case: Case) -> bool:
    return _is_present(argument, case) and any(_is_present(one, case) for one in others)


def _to(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(dtype)


def _longer(tensor: torch.Tensor) -> torch.Tensor:
    more = tensor[-1:] if len(tensor) else tensor.new_zeros((1, *tensor.shape[1:]))
    return torch.cat([tensor, more])


def _with_first(value: int, tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[:1] = value
    return changed
