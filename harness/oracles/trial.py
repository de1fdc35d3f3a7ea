"""The calls of one candidate on one case, each made when an oracle needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from attnproof.harness.cases.memory.arena import filled_anew
from attnproof.harness.cases.variation.altered_calls import alteration_of, fault_of
from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.operations.shared.sequence import Transcript
from attnproof.harness.oracles.attempt import (
    Attempt,
    attempt,
    is_mutable,
    output_in_both,
    text_of_result,
)
from attnproof.harness.oracles.defaults import WithoutDefaults
from attnproof.harness.oracles.guards import FILLS
from attnproof.harness.oracles.late_copies import LateCall, call_with_late_copies
from attnproof.harness.oracles.restated import restate, restated
from attnproof.harness.phases import Phase, counted


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
    poisons: bool = True
    """False to leave out the call with the other poison pattern."""
    earlier: Call | None = None
    """Call whose tensors and objects get the values of the case if they are alike, None to make
    new ones."""
    kept: dict[Place, str] = field(default_factory=dict)
    """Inputs on the device in whose memory outputs of the reference are, once it is called."""

    @counted(Phase.LAY_OUT)
    def prepare(self, pattern: int) -> Call:
        """Return a new call with poison pattern `pattern` (0 or 1) in its stale entries."""
        earlier = self.earlier
        with filled_anew(None if earlier is None else earlier.arena):
            call = self.operation.call.prepare(self.case, pattern, self.device)
        if earlier is not None:
            _fill_objects(earlier, call)
        if self.case.fault:
            self.alteration.malform(call)
        return call

    @cached_property
    def alteration(self) -> Fault:
        """The fault of a malformed case, perhaps without the error that it must raise."""
        return alteration_of(self.operation, self.case)

    @cached_property
    def fault(self) -> Fault:
        """The fault of a malformed case; the reference is called for that of an altered value."""
        return fault_of(self.operation, self.case)

    @cached_property
    def first(self) -> Attempt:
        """The candidate's first call."""
        return self._attempt(0)

    @property
    def guarded(self) -> tuple[Attempt, ...]:
        """The first call, and the one with the other poison pattern unless it is left out."""
        return (self.first, self.poisoned) if self.poisons else (self.first,)

    @cached_property
    def expected(self) -> dict[Place, Any]:
        """The reference's outputs for the same input."""
        return self._expect(0)

    @cached_property
    def again(self) -> Attempt:
        """The candidate's second call, on equal input, without arguments that have a default.

        If its result differs from the first one's, all arguments are given in another call: it
        replaces this one if its result differs too. If it does not, a call with the input in other
        words replaces it whose result does.
        """
        again = self._without_defaults(0)
        if again.left_out and self._differs(again):
            complete = self._attempt(0)
            again = complete if self._differs(complete) else again
        diagnosis = restated(self.first.call) if self.operation.call.takes_arguments else ""
        if diagnosis and not self._differs(again):
            in_words = self._attempt(0, change=restate)
            if self._differs(in_words):
                again, again.restated = in_words, diagnosis
        writes = again.call.arena.unexpected_writes(again.call.written) if again.call.arena else ()
        names = [write.name for write in writes if write.inside]
        names += [change.name for change in again.changes if not change.allowed]
        again.modified = next(iter(names), "")
        if self.operation.call.takes_arguments:
            again.shared = output_in_both(self.first, again)
        return again

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
        """The candidate's call with the other poison pattern.

        A malformed call leaves out the arguments that have their default, as `again` does.
        """
        return self._without_defaults(1) if self.case.fault else self._attempt(1)

    @cached_property
    def expected_poisoned(self) -> dict[Place, Any]:
        """The reference's outputs for the other poison pattern."""
        return self._expect(1)

    def _differs(self, again: Attempt) -> bool:
        return text_of_result(again) != text_of_result(self.first)

    def repeat(self, times: int) -> None:
        """Call the candidate again on equal input, and discard the results."""
        for _ in range(times):
            self._attempt(0)

    def _attempt(
        self,
        pattern: int,
        *,
        waiting: bool = True,
        change: Callable[[Call], None] = lambda _call: None,
    ) -> Attempt:
        call, fill = self.prepare(pattern), FILLS[pattern]
        change(call)
        return attempt(self.operation, self.function, call, fill, self.device, waiting=waiting)

    def _without_defaults(self, pattern: int) -> Attempt:
        if not self.operation.call.takes_arguments:
            return self._attempt(pattern)
        function = WithoutDefaults(self.function, self.reference)
        call, fill = self.prepare(pattern), FILLS[pattern]
        outcome = attempt(self.operation, function, call, fill, self.device)
        outcome.left_out = tuple(dict.fromkeys(function.left_out))
        return outcome

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
    """Give the call the objects of an earlier one, with its own entries and attributes.

    Of dicts and lists those in `plain` only: facts of the case may hold others, and compare them
    by identity.
    """
    for name, value in [*call.args.items(), *call.kwargs.items()]:
        if isinstance(value, dict | list) and call.plain.get(name) is not value:
            continue
        filled = _filled((earlier.args | earlier.kwargs).get(name), value)
        if filled is not value:
            call.replace(name, filled)


def _filled(old: Any, new: Any) -> Any:
    """Return `old` with the contents of `new` if both are mutable and of one type, else `new`."""
    if old is new or type(old) is not type(new):
        return new
    if isinstance(new, list):
        old[:] = new
    elif isinstance(new, dict):
        entries = {key: _filled(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(entries)
    elif is_mutable(new):
        _filled(vars(old), vars(new))
    else:
        return new
    return old
