"""Calls to time, each on inputs of its own, and the comparison of their results.

A candidate can notice that it is timed: garbage collection is off, and the same function is
called often. A time is therefore worth what the result of the timed call itself is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from attnproof import reference
from attnproof.harness.model.call import MISSING, Call, Thunk
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.oracles.equality import agrees, difference
from attnproof.harness.running.loading import offered_by
from attnproof.harness.timing.process.binding import is_single_use

_OBJECT_BYTES = 1 << 14
"""Bytes counted for the Python objects of one call, beside its tensors."""
_LONGEST_TEXT = 200
_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors whose elements exist when a call returns."""


class Mismatch(NamedTuple):
    """A result that is not the verified one."""

    operation: str
    text: str


class WrongResultError(Exception):
    """A timed call returned another result than the verified one."""

    def __init__(self, name: str, mismatch: Mismatch) -> None:
        """Store the name of the candidate, and the mismatch."""
        super().__init__(name, mismatch)
        self.name = name
        self.mismatch = mismatch


def _unchecked(_result: Any) -> None:
    return None


def _nothing() -> None:
    return None


class TimedCall(NamedTuple):
    """A call on inputs of its own, ready to be timed."""

    run: Thunk
    mismatch: Callable[[Any], Mismatch | None] = _unchecked
    """Function from the result of `run` to its mismatch, None without one."""
    touch: Callable[[], None] = _nothing
    """Function that reads the inputs' memory, so that caches hold it."""
    read_fields: Callable[[], None] = _nothing
    """Function that reads the fields of the arguments: an adapter has just made its own."""
    nbytes: int = _OBJECT_BYTES
    """Memory of the inputs in bytes, approximately."""


def laid_out(operation: Operation, case: Case, device: str, template: Call | None) -> Call:
    """Return a call on memory of its own, a copy of the template if there is one."""
    # Gigabytes of a cache take seconds to draw on the host, and a millisecond to copy on a GPU.
    return deepcopy(template) if template else operation.call.prepare(case, 0, device)


def expected_outputs(
    operation: Operation, case: Case, device: str, template: Call | None = None
) -> dict[Place, Any]:
    """Return the outputs of the reference for the call that is timed."""
    call = laid_out(operation, case, device, template)
    if operation.contract.for_reference is not None:
        operation.contract.for_reference(call)
    offered = offered_by(reference, operation)
    result = operation.call.bind(offered, call)()
    return by_place(operation.call.timed_outputs(offered, call, result))


def _read_fields(run: Thunk) -> None:
    """Read all fields of the arguments that are dataclasses."""
    for argument in getattr(run, "args", ()):
        for name in getattr(argument, "__dataclass_fields__", ()):
            getattr(argument, name, None)


@dataclass
class CandidateCalls:
    """The calls of one candidate on one case."""

    operation: Operation
    case: Case
    offered: Any
    """The candidate's function or class."""
    device: str
    expected: Mapping[Place, Any]
    """The reference's outputs."""
    template: Call | None = None
    """Call that is copied on its device for each new one; None to lay each out from the case."""
    deviates: bool = False
    """True if a known deviation shows on the case.

    Outputs that deviate where nothing is timed are then expected as they are.
    """
    _own: dict[Place, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Call a deviating candidate once, to find the outputs that deviate."""
        if self.deviates:
            call, run = self._bound()
            own = self._outputs(call, run())
            self._own = {
                place: own.get(place, MISSING)
                for place, right in self.expected.items()
                if not agrees(self.operation, place, right, own.get(place, MISSING))
            }

    def make(self) -> TimedCall:
        """Prepare new inputs; return the call."""
        call, run = self._bound()
        mismatch = partial(self._mismatch, call)
        fields = partial(_read_fields, run)
        if call.arena is None:
            return TimedCall(run, mismatch, read_fields=fields)
        nbytes = _OBJECT_BYTES + call.arena.nbytes
        return TimedCall(run, mismatch, call.arena.touch, fields, nbytes)

    def call_and_result(self) -> tuple[Call, Any]:
        """Make a call that is not timed; return it with its result."""
        call, run = self._bound()
        return call, run()

    def is_single_use(self) -> bool:
        """True if each call can run only once."""
        call = laid_out(self.operation, self.case, self.device, self.template)
        return is_single_use(self.operation, self.offered, call)

    def _bound(self) -> tuple[Call, Thunk]:
        call = laid_out(self.operation, self.case, self.device, self.template)
        return call, self.operation.call.bind(self.offered, call)

    def _outputs(self, call: Call, result: Any) -> dict[Place, Any]:
        return by_place(self.operation.call.timed_outputs(self.offered, call, result))

    def _mismatch(self, call: Call, result: Any) -> Mismatch | None:
        try:
            text = self._difference(self._outputs(call, result))
        except Exception as error:  # a result may be an object that raises anything
            text = f"{type(result).__name__} cannot be compared ({type(error).__name__})"
        return Mismatch(self.operation.name, text[:_LONGEST_TEXT]) if text else None

    def _difference(self, got: dict[Place, Any]) -> str:
        """Return the first output that differs, with both values; "" without one."""
        for place, right in (dict(self.expected) | self._own).items():
            value = got.get(place, MISSING)
            if isinstance(value, torch.Tensor) and type(value) not in _TENSORS:
                # Its methods may compute the elements now, after the clock has stopped.
                return f"{place} is a {type(value).__name__}, expected a plain tensor"
            if not agrees(self.operation, place, right, value):
                return difference(self.operation, place, right, value)[1]
        return ""
