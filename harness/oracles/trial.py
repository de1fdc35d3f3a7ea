"""One case tried on one candidate: what was called, what came back, what it printed."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Call, Operation, Outputs
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.operations.shared.playing import Transcript
from attnproof.harness.oracles.device import DeviceLostError, is_lost, no_waiting, wait_for
from attnproof.harness.oracles.guards import FILLS, GuardedAllocations
from attnproof.harness.oracles.late_copies import LateCall, call_with_late_copies


@dataclass
class Attempt:
    """One call of a function and everything that can be seen of it."""

    call: Call
    plain_before: dict[str, Any]
    attributes_before: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    """The dataclasses among the arguments, and what their fields held."""
    returned: Outputs = field(default_factory=dict)
    """Outputs with the operation's own keys, which its contract reads."""
    outputs: dict[Place, Any] = field(default_factory=dict)
    error: BaseException | None = None
    """What the function raised."""
    malformed: str = ""
    """Why the result could not be read as the operation's outputs."""
    log: str = ""
    stray_writes: int = 0
    """Allocations of the function whose guard words changed."""
    unwaited_copies: bool = False
    """Whether it made a copy, perhaps to the host, that it asked not to be waited for."""


def attempt(
    operation: Operation,
    function: Any,
    call: Call,
    fill: int,
    device: str = "cpu",
    *,
    waiting: bool = True,
) -> Attempt:
    """Call the function once; whatever it raises is recorded, not raised (DeviceLostError).

    What it allocates lies between guard words and holds the byte `fill`. Without
    `waiting` a wait for the device is an error; afterwards the device is waited for, so
    that an error of a kernel is this call's.
    """
    made = Attempt(call, deepcopy(call.plain | call.plain_written), _attributes(call))
    guards = GuardedAllocations(fill)
    try:
        with guards, nullcontext() if waiting else no_waiting():
            result = operation.call.run(function, call)
        wait_for(device)
        made.stray_writes = guards.broken()
        made.unwaited_copies = guards.unwaited_copies
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a candidate may raise anything, SystemExit too
        if is_lost(error):
            raise DeviceLostError(str(error)) from error
        made.error = error
        made.log = "".join(traceback.format_exception(error)[-12:])
        return made
    if isinstance(result, Transcript):
        made.log = result.log
    try:
        made.returned = operation.call.outputs(call, result)
        made.outputs = by_place(made.returned)
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        made.malformed = f"{type(result).__name__} ({error})"
    return made


def _attributes(call: Call) -> list[tuple[Any, dict[str, Any]]]:
    """Every dataclass among the arguments, alone or in a list, with its fields."""
    items: list[Any] = []
    for argument in call.args.values():
        items += argument if isinstance(argument, list) else [argument]
    return [(item, dict(vars(item))) for item in items if is_dataclass(item)]


@dataclass
class Trial:
    """Everything the oracles look at; each call is made when the first oracle needs it."""

    operation: Operation
    case: Case
    function: Any
    """What the candidate offers: a function, a class, or the parts of a sequence."""
    reference: Any
    device: str

    def prepare(self, pattern: int) -> Call:
        """A fresh call, its stale places filled with `pattern`."""
        call = self.operation.call.prepare(self.case, pattern, self.device)
        if self.case.fault:
            self.operation.inputs.faults[self.case.fault].malform(call)
        return call

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
        """The candidate's second call, on equal input."""
        return self._attempt(0)

    @cached_property
    def unwaited(self) -> Attempt:
        """The candidate's call where a wait for the device is an error."""
        return self._attempt(0, waiting=False)

    @cached_property
    def late(self) -> LateCall | None:
        """The candidate's call where copies to the host are late, None if it makes none."""
        if not self.first.unwaited_copies or not self.operation.call.takes_arguments:
            return None
        return call_with_late_copies(self.operation, self.function, self.prepare(0), self.device)

    @cached_property
    def poisoned(self) -> Attempt:
        """The candidate on the other stale pattern."""
        return self._attempt(1)

    @cached_property
    def expected_poisoned(self) -> dict[Place, Any]:
        """The reference's outputs for the other stale pattern."""
        return self._expect(1)

    def _attempt(self, pattern: int, *, waiting: bool = True) -> Attempt:
        call, fill = self.prepare(pattern), FILLS[pattern]
        return attempt(self.operation, self.function, call, fill, self.device, waiting=waiting)

    def _expect(self, pattern: int) -> dict[Place, Any]:
        call = self.prepare(pattern)
        if self.operation.contract.for_reference is not None:
            self.operation.contract.for_reference(call)
        result = self.operation.call.run(self.reference, call)
        if isinstance(result, Transcript) and result.error is not None:
            raise result.error
        return by_place(self.operation.call.outputs(call, result))


def digest(outputs: Outputs) -> str:
    """Hash of all outputs: values, shapes and types."""
    state = hashlib.blake2b(digest_size=8)
    for name, value in outputs.items():
        state.update(str(name).encode())
        if isinstance(value, torch.Tensor):
            state.update(f"{value.dtype}{tuple(value.shape)}".encode())
            plain = value.detach().cpu()  # numpy has no bfloat16 and the like
            state.update((plain.double() if plain.is_floating_point() else plain).numpy().tobytes())
        elif isinstance(value, np.ndarray):
            state.update(f"{value.dtype}{value.shape}".encode())
            state.update(np.ascontiguousarray(value).tobytes())
        else:
            state.update(f"{type(value).__name__}{value!r}".encode())
    return state.hexdigest()


class PrintWatch:
    """Sees whether anything was written to standard output, by whatever means."""

    def __init__(self) -> None:
        self._seen = 0

    def take(self) -> str:
        """What was printed since the last call, at most 2,000 characters."""
        sys.stdout.flush()
        size = os.fstat(1).st_size
        if size == self._seen:
            return ""
        text = os.pread(1, min(size - self._seen, 2000), self._seen)
        self._seen = size
        return text.decode(errors="replace")
