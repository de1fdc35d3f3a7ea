"""Malformed calls beside the listed faults: one value of a good call is altered, or several.

A listed fault says which error it must raise. Here the reference decides: a call that it refuses
is malformed, and every candidate that checks its input must refuse it with an error of that class.
A call that it accepts is no test, as the specification may leave its result open.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import is_dataclass
from dataclasses import replace as replace_fault
from functools import partial
from random import Random
from typing import Any, NamedTuple

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
_LARGE = 2**20
_NONE = Fault("", lambda old: old, applies=lambda _: False)
"""Fault of a call without a value to alter."""
_SHARE_ALIKE, _SHARE_OF_TWO = 0.3, 0.2
"""Shares of the calls in which all tensors of a dtype are altered alike, or two values."""
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
    match = _NAMES.fullmatch(case.fault)
    if match is None:
        return operation.inputs.faults[case.fault]
    # A case is asked about several times, in turns with the next one, and the reference is slow.
    for known, case_id, fault in _LAST:
        if known is operation and case_id == case.id:
            return fault
    _LAST.append((operation, case.id, _altered_value(operation, case, int(match[1]))))
    return _LAST[-1][2]


def alteration_of(operation: Operation, case: Case) -> Fault:
    """Return what malforms the calls of a case: its fault, perhaps without the error."""
    match = _NAMES.fullmatch(case.fault)
    if match is None:
        return operation.inputs.faults[case.fault]
    call = operation.call.prepare(replace(case, fault=""), 0, "cpu")
    return _alteration(call, int(match[1])) or _NONE


_LAST: deque[tuple[Operation, str, Fault]] = deque(maxlen=3)
"""The last operations and ids of cases of `fault_of`, with the faults."""


def _altered_value(operation: Operation, case: Case, number: int) -> Fault:
    fault, refusals = _NONE, set()
    # Stale entries alone, which differ between the patterns, make no malformed call.
    for pattern in (0, 1):
        call = operation.call.prepare(replace(case, fault=""), pattern, "cpu")
        if pattern == 0:
            fault = _alteration(call, number) or _NONE
        if fault is _NONE:
            return _NONE
        fault.malform(call)
        error = _error_of_reference(operation, call)
        refused = _with_error(fault, error)
        refusals.add((refused.error, refused.field))
        if error is None or len(refusals) > 1:
            return _with_error(fault, None)
    return refused


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
        return replace_fault(fault, applies=lambda _: False)
    field = error.field.split("[")[0] if isinstance(error, MetadataError) else ""
    kind = MetadataError if isinstance(error, MetadataError) else TypeError
    return replace_fault(fault, field=field, error=kind, any_field=True)


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
    """Return the fault that alters the call, None if it has no value to alter.

    One value is altered, two of them, or all tensors of a dtype in the same way: a check of one
    value by another must not take two wrong ones for right.
    """
    rng = Random(number)
    arguments = call.args | call.kwargs
    # A nested argument has as many values as all others together: they have equal shares.
    name = [*arguments][number % len(arguments)] if arguments else ""
    paths = [*_paths(arguments.get(name), (name,))]
    if not paths:
        return None
    # Entries of a long list must not leave few changes to the list itself.
    depth = rng.choice(sorted({len(path) for path in paths}))
    first = rng.choice([path for path in paths if len(path) == depth])
    seed, share = rng.random(), rng.random()
    changes = [_Alteration(first[0], first[1:], seed)]
    value = arguments[name]
    if len(first) == 1 and isinstance(value, torch.Tensor) and share < _SHARE_ALIKE:
        alike = (key for key, other in arguments.items() if key != name and _alike(value, other))
        changes += [_Alteration(key, (), seed) for key in alike]
    elif share > 1 - _SHARE_OF_TWO:
        name = rng.choice([*arguments])
        more = [path for path in _paths(arguments[name], (name,)) if path != first]
        if more:
            second = rng.choice(more)
            changes.append(_Alteration(second[0], second[1:], rng.random()))
    parameters = tuple(dict.fromkeys(change.parameter for change in changes))

    def detail() -> str:
        return "; ".join(change.described(arguments) for change in changes)

    several = len(changes) > 1
    change = partial(_with, changes, parameters)
    return Fault(parameters, change, any_error=several, detail=detail)


class _Alteration(NamedTuple):
    """A value that is altered."""

    parameter: str
    path: Path
    """Path below the parameter."""
    seed: float

    def described(self, arguments: dict[str, Any]) -> str:
        """Return the place, the old and the new value."""
        old = arguments[self.parameter]
        for step in self.path:
            old = _item(old, step)
        place = "".join([self.parameter, *(f"[{step!r}]" for step in self.path)])
        return f"{place} {_short(old)} -> {_short(_altered(old, Random(self.seed)))}"


def _with(
    changes: Sequence[_Alteration], parameters: tuple[str, ...], *old: Any
) -> tuple[Any, ...]:
    """Return the values of the parameters with all alterations."""
    values = dict(zip(parameters, old, strict=True))
    for change in changes:
        # An earlier alteration may have taken the place of a later one.
        with suppress(LookupError, AttributeError, TypeError):
            values[change.parameter] = _replaced(values[change.parameter], change.path, change.seed)
    return tuple(values[name] for name in parameters)


def _alike(tensor: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and tensor.dtype == other.dtype


def _paths(value: Any, path: Path) -> Iterator[Path]:
    """Yield the path of each value below `path` that can be altered."""
    if isinstance(value, bool | int | list | dict | torch.Tensor | np.ndarray):
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
    replaced = copy(value)
    if isinstance(value, list | dict):
        replaced[step] = new
    else:
        object.__setattr__(replaced, step, new)
    return replaced


def _altered(value: Any, rng: Random) -> Any:
    """Return another value: near the old one, beyond a limit, or of another type or length."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        typed = (float(value), value > 0, np.array(value)[()])
        return rng.choice((value + 1, value - 1, value + 2, 0, -1, -value, 2 * value, *typed))
    if isinstance(value, list):
        return rng.choice((value[:-1], value[1:], value + value[-1:], [], tuple(value)))
    if isinstance(value, dict):
        left_out = rng.choice([*value, None])
        left = {key: item for key, item in value.items() if key != left_out}
        # A dict that makes up what is missing: a check that reads an entry adds it.
        altered = defaultdict(partial(copy, next(iter(value.values()), 0)), left)
        return rng.choice((left, altered, altered, value | {None: None}, [*value.values()]))
    if isinstance(value, np.ndarray):
        tensor = torch.from_numpy(value.copy())
        altered = _altered(tensor, rng)
        if isinstance(altered, np.ndarray):  # another kind of a tensor
            return tensor
        return altered.numpy() if isinstance(altered, torch.Tensor) and altered.is_cpu else altered
    if value.dtype in _INTEGERS and value.numel() and rng.random() < 0.7:
        return _with_other_element(value, rng)
    return _of_another_kind(value, rng)


def _with_other_element(tensor: torch.Tensor, rng: Random) -> torch.Tensor:
    altered = tensor.clone()
    index, other = (tuple(map(rng.randrange, tensor.shape)) for _ in range(2))
    old = int(altered[index])
    # None is very large: the reference may accept it, and take as many steps.
    new = rng.choice((old + 1, old - 1, old + 2, 0, -1, -2, 2 * old, _LARGE, int(altered[other])))
    limits = torch.iinfo(tensor.dtype)
    altered[index] = min(max(new, limits.min), limits.max)
    return altered


def _of_another_kind(tensor: torch.Tensor, rng: Random) -> Any:
    other_dtype = torch.int32 if tensor.dtype == torch.int64 else torch.int64
    kinds: list[Callable[[], Any]] = [lambda: tensor[None], tensor.tolist]
    dtypes = (other_dtype, torch.float32, torch.float16)
    kinds += [partial(tensor.to, to) for to in ("meta", *dtypes)]
    if tensor.dtype in _INTEGERS:
        kinds.append(tensor.numpy)
    if tensor.dim():
        kinds += [lambda: tensor[:-1], lambda: torch.cat([tensor, tensor[-1:]])]
        kinds += [partial(_apart, tensor), lambda: tensor[..., :1].expand(tensor.shape)]
        kinds += [lambda: tensor[..., 0]] if tensor.numel() else []
    return rng.choice(kinds)()


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with a gap after each element."""
    return tensor.new_empty((*tensor.shape, 2))[..., 0].copy_(tensor)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
