"""One call of a candidate: its result or exception, and what it changed among its arguments."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import memory_of
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.candidate import NotProvidedError
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.model.text import text_of
from attnproof.harness.operations.shared.metadata import CLASS
from attnproof.harness.operations.shared.sequence import Transcript
from attnproof.harness.oracles.device import DeviceLostError, is_lost, no_waiting, wait_for
from attnproof.harness.oracles.guards import GuardedAllocations, new_memory_filled
from attnproof.harness.phases import Phase, during

ATOMS = frozenset((int, float, bool, str, type(None)))
"""Types of values that hold no others."""
_MOST_OBJECTS = 1000
"""Maximum number of objects of a result that are compared with those of another."""


class Change(NamedTuple):
    """A change of a Python object among the arguments, or a write to a tensor by torch."""

    name: str
    text: str
    """Verb phrase: what it was and what it is now."""
    allowed: bool
    """True if the operation must write the object, unless it raises."""


@dataclass
class Attempt:
    """One call of a function and everything that is observed of it."""

    call: Call
    before: Before | None = None
    """State of the Python objects among the arguments before the call."""
    result: Any = None
    """Object that the function returned, only in the process that called it."""
    returned: Outputs = field(default_factory=dict)
    """Outputs with the operation's own keys, which its contract reads."""
    outputs: dict[Place, Any] = field(default_factory=dict)
    error: BaseException | None = None
    """Exception that the function raised."""
    malformed: str = ""
    """Reason why the result could not be read as the operation's outputs, "" if it could."""
    transcript_log: str = ""
    """Traceback of the last step of a sequence, "" if all steps ran."""
    stray_writes: int = 0
    """Number of the function's allocations with changed guard words."""
    unwaited_copies: bool = False
    """True if the function made a non-blocking copy, perhaps to the host."""
    modified: str = ""
    """Name of an input that a repeated call has modified, "" if none."""
    shared: str = ""
    """Output of a repeated call in the memory of the first call's result, "" if none."""
    left_out: tuple[str, ...] = ()
    """Names of the arguments with their default that a repeated call has left out."""
    restated: str = ""
    """Diagnosis if a repeated call in other words differs by them, "" in the same words."""

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Changes of the Python objects among the arguments, and writes by torch, up to now."""
        return () if self.before is None else tuple(self.before.changes(self.call))

    @cached_property
    def log(self) -> str:
        """Traceback of the exception, or of the last step of a sequence; "" without one."""
        # Formatting parses source lines: it takes longer than most calls with malformed input.
        if self.error is None:
            return self.transcript_log
        try:
            return "".join(traceback.format_exception(self.error)[-12:])
        except Exception as error:  # the exception's class forbids the look
            return f"a traceback that cannot be made ({type(error).__name__})\n"


def attempt(
    operation: Operation,
    function: Any,
    call: Call,
    fill: int,
    device: str = "cpu",
    *,
    waiting: bool = True,
) -> Attempt:
    """Call the function once and record its result or exception; raise only DeviceLostError.

    The function's tensors have guard words around them, and its uninitialised memory holds
    the byte `fill`. Without `waiting`, a wait for the device is an error.
    """
    outcome = Attempt(call, Before(call))
    guards = GuardedAllocations(fill)
    try:
        not_waiting = nullcontext() if waiting else no_waiting()
        with during(Phase.CALL), guards, new_memory_filled(fill), not_waiting:
            result = operation.call.run(function, call)
        wait_for(device)  # so that this call gets the errors of its kernels
        outcome.stray_writes = guards.changed()
        outcome.unwaited_copies = guards.unwaited_copies
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a candidate may raise anything, SystemExit too
        if isinstance(error, NotProvidedError):
            raise
        if is_lost(error):
            raise DeviceLostError(text_of(error, str)) from error
        outcome.error = error
        return outcome
    outcome.result = result
    if isinstance(result, Transcript):
        outcome.transcript_log = result.log
    try:
        outcome.returned = _with_classes(operation.call.outputs(call, result))
        outcome.outputs = by_place(outcome.returned)
    except Exception as error:  # the result may be anything
        outcome.malformed = f"{type(result).__name__} ({text_of(error, str)})"
    return outcome


def _with_classes(outputs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the outputs, and the class of each tensor that is not what torch makes by itself.

    A parameter of a module or another subclass gives its operations a meaning of their own.
    """
    classes = {
        place._replace(field=f"{place.field}.{CLASS}"): type(value).__name__
        for place, value in by_place(outputs).items()
        if issubclass(type(value), torch.Tensor)
        and type(value) not in (torch.Tensor, type(torch.empty(0, device=value.device)))
    }
    return {**outputs, **classes}


class Before:
    """State of the Python objects among the arguments before a call, and tensors' versions."""

    def __init__(self, call: Call) -> None:
        self._plain = _copied(call.plain | call.plain_written)
        self._attributes = _attributes(call)
        self._versions: dict[str, int] = call.arena.versions() if call.arena else {}

    def changes(self, call: Call) -> Iterator[Change]:
        """Yield the changes that the call has made."""
        for argument, before in self._attributes:
            for name, value in vars(argument).items():
                old = before.get(name)
                if value is not old and not (isinstance(old, int | slice) and value == old):
                    text = f"of the argument was {text_of(old)} and is now {text_of(value)}"
                    yield Change(name, text[:300], allowed=False)
        versions = call.arena.versions() if call.arena else {}
        for name, version in versions.items():
            if version != self._versions[name] and name not in call.written:
                yield Change(name, "was written in place, perhaps with its own values", False)
        for objects, allowed in ((call.plain, False), (call.plain_written, True)):
            for name, now in objects.items():
                old = self._plain[name]
                if now != old:
                    text = f"was {text_of(old)} and is now {text_of(now)}"
                    yield Change(name, text[:300], allowed)


def _copied(value: Any) -> Any:
    """Return a deep copy of Python objects."""
    # `deepcopy` makes a call for each number of a list: half the time of a builder's case.
    if type(value) in ATOMS:
        return value
    if type(value) is list:
        atoms = ATOMS.issuperset(map(type, value))
        return value.copy() if atoms else [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if is_dataclass(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        clone = copy(value)
        vars(clone).update(_copied(vars(value)))
        return clone
    return deepcopy(value)


def _attributes(call: Call) -> list[tuple[Any, dict[str, Any]]]:
    """Return the dataclasses among the arguments, alone or in a list, with their fields."""
    items: list[Any] = []
    for argument in call.args.values():
        if not isinstance(argument, list):
            items.append(argument)
        elif not ATOMS.issuperset(map(type, argument)):  # numbers, of which there may be many
            items += argument
    return [(item, dict(vars(item))) for item in items if is_dataclass(item)]


def is_mutable(value: Any) -> bool:
    """True if a caller may set attributes of the object: no class, function, constant or tensor."""
    kind = type(value)  # an object of a candidate may claim another class
    if issubclass(kind, torch.Tensor | type | Enum) or callable(value):
        return False
    params = getattr(kind, "__dataclass_params__", None)
    return kind.__dictoffset__ != 0 and not (params is not None and params.frozen)


def output_in_both(first: Attempt, again: Attempt) -> str:
    """Return the first output of `again` that is an output of `first`, "" if none is.

    Tensors are compared by their memory, mutable objects by identity. Outputs in the memory of an
    input do not count; the calls have no mutable object in common.
    """
    try:
        kept_objects = {id(part) for part in _parts(first.result)}
        if any(id(part) in kept_objects for part in _parts(again.result) if not _is_memory(part)):
            return "result"
        kept = [span for _, span in _memory(first)]
        for place, (start, stop) in _memory(again):
            if any(start < end and begin < stop for begin, end in kept):
                return place.root
    except Exception:  # a tensor of the candidate that cannot be looked at, such as a sparse one
        return ""
    return ""


def _is_memory(value: Any) -> bool:
    return issubclass(type(value), torch.Tensor | np.ndarray)


def _parts(value: Any) -> Iterator[Any]:
    """Yield lists, dicts, objects with attributes, tensors and arrays of a result."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        inside: Iterable[Any] = ()
        # Methods of the base classes: those of a candidate's own class may do anything.
        if issubclass(type(part), tuple):
            inside = tuple.__iter__(part)
        elif issubclass(type(part), list):
            inside = list.__iter__(part)
        elif issubclass(type(part), dict):
            inside = dict.values(part)
        elif is_mutable(part):
            inside = object.__getattribute__(part, "__dict__").values()
        elif not _is_memory(part):
            continue
        if not issubclass(type(part), tuple):
            yield part
        waiting += [item for item in inside if type(item) not in ATOMS]


def _memory(outcome: Attempt) -> Iterator[tuple[Place, tuple[int, int]]]:
    """Yield the addresses, from and to, of the outputs that have memory of their own."""
    arena = outcome.call.arena
    parts = ((Place("result"), part) for part in _parts(outcome.result))
    for place, value in (*outcome.outputs.items(), *parts):
        if isinstance(value, np.ndarray) and value.flags.contiguous:
            yield place, (value.ctypes.data, value.ctypes.data + value.nbytes)
        elif isinstance(value, torch.Tensor):
            own = arena is None or arena.owner(value) is None
            if own and value.data_ptr():  # 0 on the meta device, which has no memory
                yield place, memory_of(value)


def text_of_result(outcome: Attempt) -> str:
    """Return the error of a call, or the hash of its outputs."""
    return outcome.malformed or repr(outcome.error or digest(outcome.outputs))


def digest(outputs: Outputs) -> str:
    """Return a hash of the values, shapes and types of all outputs."""
    state = hashlib.blake2b(digest_size=8)
    for name, value in outputs.items():
        state.update(str(name).encode())
        if isinstance(value, torch.Tensor):
            state.update(f"{value.dtype}{tuple(value.shape)}".encode())
            plain = value.detach().cpu()
            if plain.is_floating_point():
                plain = plain.double()  # numpy has no bfloat16
                plain[plain.isnan()] = torch.nan  # NaN equals NaN, whatever its bits
            state.update(plain.numpy().tobytes())
        elif isinstance(value, np.ndarray):
            state.update(f"{value.dtype}{value.shape}".encode())
            state.update(np.ascontiguousarray(value).tobytes())
        else:
            state.update(f"{type(value).__name__}{value!r}".encode())
    return state.hexdigest()
