"""The calls of one candidate on one case: arguments, results, errors and printed text."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from attnproof.harness.cases.memory.arena import filled_anew, memory_of
from attnproof.harness.cases.variation.altered_calls import fault_of
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.model.text import text_of
from attnproof.harness.operations.shared.sequence import Transcript
from attnproof.harness.oracles.defaults import WithoutDefaults
from attnproof.harness.oracles.device import DeviceLostError, is_lost, no_waiting, wait_for
from attnproof.harness.oracles.guards import FILLS, GuardedAllocations, new_memory_filled
from attnproof.harness.oracles.late_copies import LateCall, call_with_late_copies

_ATOMS = frozenset((int, float, bool, str, type(None)))


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
    made = Attempt(call, Before(call))
    guards = GuardedAllocations(fill)
    try:
        not_waiting = nullcontext() if waiting else no_waiting()
        with guards, new_memory_filled(fill), not_waiting:
            result = operation.call.run(function, call)
        wait_for(device)  # so that this call gets the errors of its kernels
        made.stray_writes = guards.changed()
        made.unwaited_copies = guards.unwaited_copies
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a candidate may raise anything, SystemExit too
        if is_lost(error):
            raise DeviceLostError(text_of(error, str)) from error
        made.error = error
        return made
    made.result = result
    if isinstance(result, Transcript):
        made.transcript_log = result.log
    try:
        made.returned = operation.call.outputs(call, result)
        made.outputs = by_place(made.returned)
    except Exception as error:  # the result may be anything
        made.malformed = f"{type(result).__name__} ({text_of(error, str)})"
    return made


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
    if type(value) in _ATOMS:
        return value
    if type(value) is list:
        atoms = _ATOMS.issuperset(map(type, value))
        return value.copy() if atoms else [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if is_dataclass(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        made = copy(value)
        vars(made).update(_copied(vars(value)))
        return made
    return deepcopy(value)


def _attributes(call: Call) -> list[tuple[Any, dict[str, Any]]]:
    """Return the dataclasses among the arguments, alone or in a list, with their fields."""
    items: list[Any] = []
    for argument in call.args.values():
        items += argument if isinstance(argument, list) else [argument]
    return [(item, dict(vars(item))) for item in items if is_dataclass(item)]


@dataclass
class Trial:
    """Everything that the oracles judge; a call is made when the first oracle needs it."""

    operation: Operation
    case: Case
    function: Any
    """The candidate's function, class, or parts of a sequence."""
    reference: Any
    device: str
    of_reference: bool = False
    """True if the candidate is the reference itself."""
    earlier: Call | None = None
    """Call whose tensors, dicts and lists get the values of the case if they are alike, None to
    make new ones."""
    kept: dict[Place, str] = field(default_factory=dict)
    """Inputs on the device in whose memory outputs of the reference are, once it is called."""

    def prepare(self, pattern: int) -> Call:
        """Return a new call with poison pattern `pattern` (0 or 1) in its stale entries."""
        earlier = self.earlier
        with filled_anew(None if earlier is None else earlier.arena):
            call = self.operation.call.prepare(self.case, pattern, self.device)
        if earlier is not None:
            _fill_objects(earlier, call)
        if self.case.fault:
            self.fault.malform(call)
        return call

    @cached_property
    def fault(self) -> Fault:
        """The fault of a malformed case; the reference is called for that of an altered value."""
        return fault_of(self.operation, self.case)

    @cached_property
    def first(self) -> Attempt:
        """The candidate's first call."""
        return self._attempt(0)

    @cached_property
    def expected(self) -> dict[Place, Any]:
        """The reference's outputs for the same input."""
        return self._expect(0)

    @cached_property
    def again(self) -> Attempt:
        """The candidate's second call, on equal input, without arguments that have a default.

        If its result differs from the first one's, all arguments are given in another call: it
        replaces this one if its result differs too.
        """
        made = self._without_defaults()
        if made.left_out and _text(made) != _text(self.first):
            complete = self._attempt(0)
            made = made if _text(complete) == _text(self.first) else complete
        writes = made.call.arena.unexpected_writes(made.call.written) if made.call.arena else ()
        names = [write.name for write in writes if write.inside]
        names += [change.name for change in made.changes if not change.allowed]
        made.modified = next(iter(names), "")
        if self.operation.call.takes_arguments:
            made.shared = _in_both(self.first, made)
        return made

    @cached_property
    def unwaited(self) -> Attempt:
        """The candidate's call in which a wait for the device is an error."""
        return self._attempt(0, waiting=False)

    @cached_property
    def late(self) -> LateCall | None:
        """The candidate's call with late copies to the host, None if it makes no copies."""
        if not self.first.unwaited_copies or not self.operation.call.takes_arguments:
            return None
        return call_with_late_copies(self.operation, self.function, self.prepare(0), self.device)

    @cached_property
    def poisoned(self) -> Attempt:
        """The candidate's call with the other poison pattern."""
        return self._attempt(1)

    @cached_property
    def expected_poisoned(self) -> dict[Place, Any]:
        """The reference's outputs for the other poison pattern."""
        return self._expect(1)

    def repeat(self, times: int) -> None:
        """Call the candidate again on equal input, and discard the results."""
        for _ in range(times):
            self._attempt(0)

    def _attempt(self, pattern: int, *, waiting: bool = True) -> Attempt:
        call, fill = self.prepare(pattern), FILLS[pattern]
        return attempt(self.operation, self.function, call, fill, self.device, waiting=waiting)

    def _without_defaults(self) -> Attempt:
        if not self.operation.call.takes_arguments:
            return self._attempt(0)
        function = WithoutDefaults(self.function, self.reference)
        made = attempt(self.operation, function, self.prepare(0), FILLS[0], self.device)
        made.left_out = tuple(dict.fromkeys(function.left_out))
        return made

    def _prepared(self, pattern: int) -> Call:
        """Return a new call for the reference."""
        return self.prepare(pattern)

    def _expect(self, pattern: int) -> dict[Place, Any]:
        call = self._prepared(pattern)
        if self.operation.contract.for_reference is not None:
            self.operation.contract.for_reference(call)
        result = self.operation.call.run(self.reference, call)
        if isinstance(result, Transcript) and result.error is not None:
            raise result.error
        outputs = by_place(self.operation.call.outputs(call, result))
        if pattern == 0:
            self.kept = self._owners(call, outputs)
        return outputs

    def _owners(self, call: Call, outputs: dict[Place, Any]) -> dict[Place, str]:
        views = self.operation.contract.may_alias
        if call.arena is None or not views:
            return {}
        owners = {
            place: call.arena.owner(value)
            for place, value in outputs.items()
            if isinstance(value, torch.Tensor)
            and place.root in views
            and call.arena.is_on_device(value)
        }
        return {place: owner for place, owner in owners.items() if owner is not None}


def _fill_objects(earlier: Call, call: Call) -> None:
    """Give the call the dicts and lists of an earlier one, with its own entries.

    Those in `plain` only: facts of the case may hold others, and compare them by identity.
    """
    for name, value in [*call.args.items(), *call.kwargs.items()]:
        if call.plain.get(name) is not value:
            continue
        old = (earlier.args | earlier.kwargs).get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            old.clear()
            old.update(value)
            call.replace(name, old)
        elif isinstance(old, list) and isinstance(value, list):
            old[:] = value
            call.replace(name, old)


def _in_both(first: Attempt, again: Attempt) -> str:
    """Return the first output of `again` in the memory of an output of `first`, "" if none is.

    Outputs in the memory of an input do not count.
    """
    try:
        kept = [span for _, span in _memory(first)]
        for place, (start, stop) in _memory(again):
            if any(start < end and begin < stop for begin, end in kept):
                return place.root
    except Exception:  # a tensor of the candidate that cannot be looked at, such as a sparse one
        return ""
    return ""


def _memory(made: Attempt) -> Iterator[tuple[Place, tuple[int, int]]]:
    """Yield the addresses, from and to, of the outputs that have memory of their own."""
    arena = made.call.arena
    for place, value in made.outputs.items():
        if isinstance(value, np.ndarray) and value.flags.contiguous:
            yield place, (value.ctypes.data, value.ctypes.data + value.nbytes)
        elif isinstance(value, torch.Tensor):
            own = arena is None or arena.owner(value) is None
            if own and value.data_ptr():  # 0 on the meta device, which has no memory
                yield place, memory_of(value)


def _text(made: Attempt) -> str:
    return made.malformed or repr(made.error or digest(made.outputs))


def digest(outputs: Outputs) -> str:
    """Return a hash of the values, shapes and types of all outputs."""
    state = hashlib.blake2b(digest_size=8)
    for name, value in outputs.items():
        state.update(str(name).encode())
        if isinstance(value, torch.Tensor):
            state.update(f"{value.dtype}{tuple(value.shape)}".encode())
            plain = value.detach().cpu()  # numpy has no bfloat16
            state.update((plain.double() if plain.is_floating_point() else plain).numpy().tobytes())
        elif isinstance(value, np.ndarray):
            state.update(f"{value.dtype}{value.shape}".encode())
            state.update(np.ascontiguousarray(value).tobytes())
        else:
            state.update(f"{type(value).__name__}{value!r}".encode())
    return state.hexdigest()


class PrintWatch:
    """Reader of the text written to standard output, which is a file in a worker."""

    def __init__(self) -> None:
        self._read = 0

    def take(self) -> str:
        """Return the text printed since the last call, at most 2,000 characters."""
        sys.stdout.flush()
        size = os.fstat(1).st_size
        if size == self._read:
            return ""
        text = os.pread(1, min(size - self._read, 2000), self._read)
        self._read = size
        return text.decode(errors="replace")
