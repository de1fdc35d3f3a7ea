"""Calls of a candidate on one case, as the report of its process shows them to the judge."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch

from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.oracles.attempt import Attempt
from attnproof.harness.oracles.late_copies import LateCall
from attnproof.harness.oracles.later_calls import Overwritten
from attnproof.harness.oracles.recompilation import Version
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.exchange.reports import AttemptData, Observed, exception
from attnproof.harness.running.exchange.values import Reader

_COPIED = (
    "malformed",
    "log",
    "stray_writes",
    "unwaited_copies",
    "changes",
    "modified",
    "shared",
    "left_out",
    "restated",
)
"""Fields of an attempt that its report has as they are."""


class ForgedReportError(Exception):
    """A report that no `Observer` made."""


class ObservedTrial(Trial):
    """A trial whose calls were made in another process."""

    def __init__(
        self,
        operation: Operation,
        case: Case,
        reference: Any,
        device: str,
        *,
        of_reference: bool,
    ) -> None:
        super().__init__(operation, case, None, reference, device, of_reference=of_reference)
        self._observed: Observed | None = None
        self._calls: dict[int, Call] = {}
        """Calls of the reference by pattern."""
        self._bytes = torch.empty(0, dtype=torch.uint8)

    @counted(Phase.RECEIVE)
    def add(self, observed: Observed, memory: SharedMemory) -> None:
        """Take the report on the calls (ForgedReportError)."""
        if observed.case_id != self.case.id:
            raise ForgedReportError("a report on another case")
        self._observed, self._bytes = observed, memory.copy(observed.used)

    @counted(Phase.REFERENCE)
    def compute_expected(self, *, poisoned: bool) -> float:
        """Call the reference, while the candidate's process works; return the CPU time of a call.

        With `poisoned` it is called with the other poison pattern too.
        """
        begun = ended = time.process_time()
        if not self.case.fault:
            with suppress(Exception):  # the oracle that needs the outputs gets the error
                _ = self.expected
                ended = time.process_time()
                _ = self.expected_poisoned if poisoned else None
        return ended - begun

    @property
    def alteration(self) -> Fault:
        """The fault, which `judge` needs with its error."""
        return self.fault

    @property
    def overwritten(self) -> Overwritten | None:
        """Result of the call before that this call has changed, None without."""
        data = self._report.overwritten
        if data is None:
            return None
        place = Reader([], []).read(data[0])
        if not isinstance(place, Place):
            raise ForgedReportError("a result without a place")
        return Overwritten(place, *data[1:])

    @property
    def versions(self) -> list[Version]:
        """Versions of kernels that the candidate launched in engine steps."""
        return self._report.versions

    @cached_property
    def first(self) -> Attempt:
        """The candidate's first call."""
        return self._with_call(self._report.first, 0)

    @cached_property
    def again(self) -> Attempt:
        """The candidate's second call, on equal input."""
        return self._attempt_of(self._report.again)

    @cached_property
    def poisoned(self) -> Attempt:
        """The candidate's call with the other poison pattern."""
        data = self._report.poisoned
        return self._attempt_of(None) if data is None else self._with_call(data, 1)

    @cached_property
    def unwaited(self) -> Attempt:
        """The candidate's call in which a wait for the device is an error."""
        return self._attempt_of(self._report.unwaited)

    @cached_property
    def late(self) -> LateCall | None:
        """The candidate's call with late copies to the host, None if it makes no copies."""
        data = self._report.late
        if data is None:
            return None
        attempt = self._attempt_of(data.attempt)
        return LateCall(
            data.copies, data.may_wait, data.source_changed, attempt.outputs, attempt.error
        )

    @property
    def _report(self) -> Observed:
        assert self._observed is not None
        return self._observed

    def _prepared(self, pattern: int) -> Call:
        """Return the reference's call, which shows the judge what the candidate's call showed."""
        self._calls[pattern] = super()._prepared(pattern)
        return self._calls[pattern]

    @counted(Phase.RECEIVE)
    def _with_call(self, data: AttemptData, pattern: int) -> Attempt:
        """Return the attempt on this process's arguments, with the memory that the call left."""
        arena = self._blocks(data)[: data.arena]
        call = self._reusable(pattern, arena)
        if call is None:
            call = self.prepare(pattern)
            if call.arena is not None:
                call.arena.load(_typed(arena, call))
        return self._read(data, call.arena.buffers if call.arena is not None else [], call)

    def _reusable(self, pattern: int, arena: list[torch.Tensor]) -> Call | None:
        """Return the reference's call if it left the same memory: to prepare another is slow."""
        if self.case.fault or self.operation.contract.for_reference is not None:
            return None
        _ = self.expected_poisoned if pattern else self.expected
        call = self._calls[pattern]
        if call.arena is None:
            return call
        same = map(torch.equal, call.arena.buffers, _typed(arena, call))
        return call if all(same) else None

    @counted(Phase.RECEIVE)
    def _attempt_of(self, data: AttemptData | None) -> Attempt:
        if data is None:
            raise ForgedReportError("a report without a call that was asked for")
        return self._read(data, [])

    def _blocks(self, data: AttemptData) -> list[torch.Tensor]:
        return [self._bytes[block.offset :][: block.size] for block in data.blocks]

    def _read(
        self, data: AttemptData, buffers: Sequence[torch.Tensor], call: Call | None = None
    ) -> Attempt:
        """Return the attempt; tensors in the arena are views of `buffers` if there are any."""
        call = call or Call({})
        attempt = Attempt(call)
        try:
            reader = Reader([*buffers, *self._blocks(data)[len(buffers) :]], data.tensors)
            call.observed = reader.read(data.observed)
            attempt.returned = {
                reader.read(key): reader.read(value) for key, value in data.returned
            }
            attempt.outputs = by_place(attempt.returned)
            attempt.error = None if data.error is None else exception(data.error)
        except (ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
            raise ForgedReportError(str(error)) from error
        for name in _COPIED:
            setattr(attempt, name, getattr(data, name))
        return attempt


def _typed(arena: list[torch.Tensor], call: Call) -> list[torch.Tensor]:
    """Return the bytes of each buffer of the call's arena as elements of its dtype."""
    try:
        pairs = zip(arena, call.arena.buffers, strict=True)
        typed = [data.view(buffer.dtype).to(buffer.device) for data, buffer in pairs]
        if [data.shape for data in typed] != [buffer.shape for buffer in call.arena.buffers]:
            raise ValueError("an arena of another size")
    except (ValueError, RuntimeError) as error:
        raise ForgedReportError(str(error)) from error
    return typed
