"""Malformed calls beside the listed faults: one value of a good call is altered.

A listed fault says which error it must raise. Here the reference decides: a call that it refuses
is malformed, and every candidate that checks its input must refuse it with an error of that class.
A call that it accepts is no test, as the specification may leave its result open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import is_dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from attnproof import reference
from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.reference.interface import MetadataError

_NAME = "altered value {}"
_NAMES = re.compile(r"altered value (\d{1,9})")
_MOST_ITEMS = 6
"""Items of a list or dict that may be altered."""
_FAR = 2**20
_INTEGERS = (torch.int32, torch.int64)
Path = tuple[Any, ...]
"""Parameter, then names of fields, keys of dicts and indices."""


def has_fault(operation: Operation, name: str, device: str = "cpu") -> bool:
    """True if the operation has the fault on the device, or may have this altered value.

    Altered values exist on the CPU only: elsewhere a check of values would wait for the device.
    """
    if _NAMES.fullmatch(name) is None:
        return name in operation.inputs.faults_on(device)
    return operation.call.takes_arguments and device == "cpu"


def fault_of(operation: Operation, case: Case) -> Fault:
    """Return the fault of a case: a listed one, or an altered value with the reference's error.

    An altered value does not apply unless the reference refuses the call with the same error for
    both poison patterns. Raises KeyError if the operation has no such fault.
    """
    found = _NAMES.fullmatch(case.fault)
    if found is None:
        return operation.inputs.faults[case.fault]
    calls = [operation.call.prepare(replace(case, fault=""), pattern, "cpu") for pattern in (0, 1)]
    fault = _alteration(calls[0], int(found[1]))
    if fault is None:
        return Fault("", lambda old: old, applies=lambda _: False)
    for call in calls:
        fault.malform(call)
    errors = [_error_of_reference(operation, call) for call in calls]
    one, other = (_with_error(fault, error) for error in errors)
    # Stale entries alone, which differ between the patterns, make no malformed call.
    same = None not in errors and (one.error, one.field) == (other.error, other.field)
    return one if same else _with_error(fault, None)


def altered_cases(operation: Operation, cases: Sequence[Case], number: int) -> Iterator[Case]:
    """Try `number` altered values; yield a case for each one that the reference refuses.

    The cases are altered in turn: in each of them one value of each argument.
    """
    if not cases or not operation.call.takes_arguments or operation.call.isolated:
        return
    first = operation.call.prepare(cases[0], 0, "cpu")
    width = max(1, len(first.args) + len(first.kwargs))
    for index in range(number):
        case = replace(cases[index // width % len(cases)], fault=_NAME.format(index))
        if fault_of(operation, case).applies(case):
            yield case


def _with_error(fault: Fault, error: Exception | None) -> Fault:
    if error is None:
        return Fault(fault.parameter, fault.change, applies=lambda _: False)
    field = error.field.split("[")[0] if isinstance(error, MetadataError) else ""
    kind = MetadataError if isinstance(error, MetadataError) else TypeError
    return Fault(fault.parameter, fault.change, field, kind, any_field=True, detail=fault.detail)


def _error_of_reference(operation: Operation, call: Call) -> Exception | None:
    """Return the documented error of the reference, None without one.

    None too if it has written a result before the error: then earlier parts of the call were good.
    """
    ours = {name: getattr(reference, name) for name in operation.call.names(operation.name)}
    offered = operation.call.offered(ours, ours, built_in=True)
    try:
        operation.call.run(offered, call)
    except (MetadataError, TypeError) as error:
        return None if call.arena and call.arena.unexpected_writes() else error
    except Exception:  # a dict or list in which the harness itself misses the altered entry
        return None
    return None


def _alteration(call: Call, number: int) -> Fault | None:
    """Return the fault that alters one value of the call, None if it has no value to alter."""
    lot = Random(number)
    arguments = call.args | call.kwargs
    # A nested argument has as many values as all others together: they have equal shares.
    name = [*arguments][number % len(arguments)] if arguments else ""
    paths = [*_paths(arguments.get(name), (name,))]
    if not paths:
        return None
    parameter, *rest = lot.choice(paths)
    old = arguments[parameter]
    for step in rest:
        old = _item(old, step)
    change = partial(_replaced, path=rest, seed=lot.random())
    new = _altered(old, Random(change.keywords["seed"]))
    place = "".join([str(parameter), *(f"[{step!r}]" for step in rest)])
    return Fault(parameter, change, detail=f"{place} {_short(old)} -> {_short(new)}")


def _paths(value: Any, path: Path) -> Iterator[Path]:
    """Yield the path of each value below `path` that can be altered."""
    if isinstance(value, bool | int | list | dict | torch.Tensor):
        yield path
    for step in _steps(value):
        yield from _paths(_item(value, step), (*path, step))


def _steps(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return range(min(len(value), _MOST_ITEMS))
    if isinstance(value, dict):
        return list(value)[:_MOST_ITEMS]
    if is_dataclass(value) and not isinstance(value, type):
        return list(getattr(value, "__dict__", ()))
    return ()


def _item(value: Any, step: Any) -> Any:
    return value[step] if isinstance(value, list | tuple | dict) else getattr(value, step)


def _replaced(value: Any, path: Sequence[Any], seed: float) -> Any:
    """Return the value with an altered one at the path; what is not on the path stays."""
    if not path:
        return _altered(value, Random(seed))
    step, *rest = path
    new = _replaced(_item(value, step), rest, seed)
    if isinstance(value, tuple):
        items = [*value[:step], new, *value[step + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    made = copy(value)
    if isinstance(value, list | dict):
        made[step] = new
    else:
        object.__setattr__(made, step, new)
    return made


def _altered(value: Any, lot: Random) -> Any:
    """Return another value: near the old one, beyond a limit, or of another type or length."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        typed = (float(value), value > 0, np.int64(value))
        return lot.choice((value + 1, value - 1, value + 2, 0, -1, -value, 2 * value, *typed))
    if isinstance(value, list):
        return lot.choice((value[:-1], value[1:], value + value[-1:], [], tuple(value)))
    if isinstance(value, dict):
        left_out = lot.choice([*value, None])
        return {key: item for key, item in value.items() if key != left_out}
    if value.dtype in _INTEGERS and value.numel() and lot.random() < 0.7:
        return _with_other_element(value, lot)
    return _of_another_kind(value, lot)


def _with_other_element(tensor: torch.Tensor, lot: Random) -> torch.Tensor:
    made = tensor.clone()
    index, other = (tuple(map(lot.randrange, tensor.shape)) for _ in range(2))
    old = int(made[index])
    new = lot.choice((old + 1, old - 1, old + 2, 0, -1, -2, 2 * old, _FAR, int(made[other])))
    limits = torch.iinfo(tensor.dtype)
    made[index] = min(max(new, limits.min), limits.max)
    return made


def _of_another_kind(tensor: torch.Tensor, lot: Random) -> Any:
    other_dtype = torch.int32 if tensor.dtype == torch.int64 else torch.int64
    kinds = [tensor[None], tensor.tolist(), tensor.to(other_dtype)]
    if tensor.dim():
        kinds += [tensor[:-1], torch.cat([tensor, tensor[-1:]])]
    return lot.choice(kinds)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
