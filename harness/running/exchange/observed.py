"""Calls of a candidate on one case, as its process reports them."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
import torch

from attnproof.harness.backports import BaseExceptionGroup
from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.model.text import text_of, utf8
from attnproof.harness.oracles import cost
from attnproof.harness.oracles.attempt import Attempt, Change
from attnproof.harness.oracles.late_copies import LateCall
from attnproof.harness.oracles.later_calls import Kept, Overwritten
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.exchange.values import Block, Plain, Reader, TensorData, Writer
from attnproof.reference.interface import MetadataError

_MOST_LOG = 20_000
"""Most characters of a traceback."""
_MOST_CAUSES = 5
_MORE_CALLS = 3
"""Further calls before an earlier result is looked at again: buffers may take turns."""


class ErrorData(msgspec.Struct, frozen=True, array_like=True):
    """An exception that a candidate raised."""

    classes: list[str]
    """Its class and the classes above, as "module.name"."""
    text: str
    shown: str
    """Its text with its class."""
    field: str | None
    """Field that a MetadataError names."""
    cause: ErrorData | None


class AttemptData(msgspec.Struct, frozen=True, array_like=True):
    """One call of a candidate."""

    arena: int
    """Number of blocks that are the arena's buffers; they come first."""
    blocks: list[Block]
    tensors: list[TensorData]
    returned: list[tuple[Plain, Plain]]
    """Keys and values of the outputs."""
    error: ErrorData | None
    malformed: str
    log: str
    stray_writes: int
    unwaited_copies: bool
    changes: list[tuple[str, str, bool]]
    observed: Plain
    modified: str
    shared: str
    left_out: list[str]


class LateData(msgspec.Struct, frozen=True, array_like=True):
    """A call with late copies."""

    copies: int
    may_wait: bool
    source_changed: bool
    attempt: AttemptData


class Observed(msgspec.Struct, frozen=True, tag=True):
    """All calls on one case."""

    case_id: str
    used: int
    """Bytes of the shared memory that hold data."""
    first: AttemptData
    again: AttemptData | None
    poisoned: AttemptData | None
    unwaited: AttemptData | None
    late: LateData | None
    printed: str
    """Text that the calls wrote to standard output."""
    has_children: bool
    """True if the process has children after the calls."""
    forked: bool = False
    """True if a forked copy of the process returned from a call."""
    overwritten: tuple[Plain, str, str, str] | None = None
    """Result of the call before that this call has changed, as the fields of `Overwritten`."""


class ForgedReportError(Exception):
    """A report that no `Observer` made."""


class Observer:
    """Maker of the report on one case, in the candidate's process."""

    def __init__(
        self, trial: Trial, memory: SharedMemory, end_forked: Callable[[], None] = lambda: None
    ) -> None:
        """`end_forked` ends this process if it is not the one that was asked."""
        self._trial = trial
        self._memory = memory
        self._end_forked = end_forked

    @counted(Phase.OBSERVE)
    def observe(self, *, once: bool, repeated: bool, poisoned: bool) -> dict[str, Any]:
        """Make the calls that the oracles judge; return the fields of the report.

        With `once` only the first call is made, without `repeated` not the second one, and
        without `poisoned` not the one with the other poison pattern.
        """
        trial, found = self._trial, dict.fromkeys(("again", "poisoned", "unwaited", "late"))
        self._memory.clear()
        ended = trial.first.error is not None or trial.first.malformed
        judged = not (once or trial.case.fault or ended)
        again = trial.again if judged and repeated else None
        late = trial.late if judged and again and not (again.error or again.malformed) else None
        self._end_forked()
        # To format a traceback takes longer than a call with malformed input.
        logged = once or not trial.case.fault
        # Now, as the calls below may change memory that the results share.
        report: dict[str, Any] = found | {"first": self._attempt(trial.first, logged=logged)}
        if again is not None:
            report["again"] = self._attempt(again, judged_inputs=False)
        if late is not None:
            made = Attempt(Call({}), outputs=late.outputs, error=late.error)
            report["late"] = LateData(
                late.copies, late.may_wait, late.source_changed, self._attempt(made)
            )
        if poisoned and (judged or (trial.case.fault and not once)):
            made = trial.poisoned
            self._end_forked()
            report["poisoned"] = self._attempt(made, logged=logged)
        if judged and cost.checks(trial):
            made = trial.unwaited  # only whether it raised is judged
            report["unwaited"] = self._attempt(Attempt(Call({}), error=made.error))
        return report | {"case_id": trial.case.id, "used": self._memory.used}

    @counted(Phase.OBSERVE)
    def observe_after(self, earlier: Trial, *, in_place: bool) -> dict[str, Any]:
        """Make the call of `earlier` and then those of the trial; return the report's fields.

        With `in_place` the second call gets the tensors, dicts and lists of the first one, filled
        anew: results of the first may be views of them.
        """
        self._memory.clear()
        kept = Kept(earlier)
        self._trial.earlier = earlier.first.call if in_place else None
        made = self._trial.first
        if not in_place:
            self._trial.repeat(_MORE_CALLS)
        found = None if in_place else kept.overwritten()
        self._end_forked()
        report: dict[str, Any] = dict.fromkeys(("again", "poisoned", "unwaited", "late"))
        report["first"] = self._attempt(made)
        if found is not None:
            place, *texts = found
            report["overwritten"] = (Writer([]).write(place), *map(utf8, texts))
        return report | {"case_id": self._trial.case.id, "used": self._memory.used}

    def _attempt(
        self, made: Attempt, *, logged: bool = True, judged_inputs: bool = True
    ) -> AttemptData:
        arena = made.call.arena.buffers if made.call.arena and judged_inputs else []
        writer = Writer(arena)
        malformed, before = made.malformed, self._memory.used
        outputs = made.returned or made.outputs
        returned = [(writer.write(key), writer.write(value)) for key, value in outputs.items()]
        observed = writer.write(made.call.observed)
        try:
            blocks, tensors = writer.blocks(self._memory)
        except MemoryError:
            self._memory.clear(before)
            malformed, returned = "more bytes than can be judged", []
            blocks, tensors = Writer(arena).blocks(self._memory)
        return AttemptData(
            len(arena),
            blocks,
            tensors,
            returned,
            None if made.error is None else _error_data(made.error),
            utf8(malformed),
            utf8(made.log)[-_MOST_LOG:] if logged else "",
            made.stray_writes,
            made.unwaited_copies,
            [(change.name, change.text, change.allowed) for change in made.changes],
            observed,
            utf8(made.modified),
            utf8(made.shared),
            list(map(utf8, made.left_out)),
        )


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

    @cached_property
    def first(self) -> Attempt:
        """The candidate's first call."""
        return self._with_call(self._report.first, 0)

    @cached_property
    def again(self) -> Attempt:
        """The candidate's second call, on equal input."""
        return self._made(self._report.again)

    @cached_property
    def poisoned(self) -> Attempt:
        """The candidate's call with the other poison pattern."""
        data = self._report.poisoned
        return self._made(None) if data is None else self._with_call(data, 1)

    @cached_property
    def unwaited(self) -> Attempt:
        """The candidate's call in which a wait for the device is an error."""
        return self._made(self._report.unwaited)

    @cached_property
    def late(self) -> LateCall | None:
        """The candidate's call with late copies to the host, None if it makes no copies."""
        data = self._report.late
        if data is None:
            return None
        made = self._made(data.attempt)
        return LateCall(data.copies, data.may_wait, data.source_changed, made.outputs, made.error)

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
    def _made(self, data: AttemptData | None) -> Attempt:
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
        made = Attempt(call)
        try:
            reader = Reader([*buffers, *self._blocks(data)[len(buffers) :]], data.tensors)
            call.observed = reader.read(data.observed)
            made.returned = {reader.read(key): reader.read(value) for key, value in data.returned}
            made.outputs = by_place(made.returned)
            made.error = None if data.error is None else _error(data.error)
        except (ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
            raise ForgedReportError(str(error)) from error
        made.malformed, made.log = data.malformed, data.log
        made.stray_writes, made.unwaited_copies = data.stray_writes, data.unwaited_copies
        made.modified, made.left_out = data.modified, tuple(data.left_out)
        made.shared = data.shared
        made.changes = tuple(Change(*change) for change in data.changes)
        return made


def _typed(arena: list[torch.Tensor], call: Call) -> list[torch.Tensor]:
    """Return the bytes of each buffer of the call's arena as elements of its dtype."""
    try:
        pairs = zip(arena, call.arena.buffers, strict=True)
        found = [data.view(buffer.dtype).to(buffer.device) for data, buffer in pairs]
        if any(one.shape != b.shape for one, b in zip(found, call.arena.buffers, strict=True)):
            raise ValueError("an arena of another size")
    except (ValueError, RuntimeError) as error:
        raise ForgedReportError(str(error)) from error
    return found


def _error_data(error: BaseException, depth: int = 0) -> ErrorData:
    try:
        return _readable_error(error, depth)
    except Exception:  # its class forbids the look
        text = "an exception that cannot be read"
        return ErrorData(["builtins.Exception"], text, text, None, None)


def _readable_error(error: BaseException, depth: int) -> ErrorData:
    kind = type(error)
    cause = error.__cause__ or error.__context__
    return ErrorData(
        [f"{each.__module__}.{each.__name__}" for each in kind.__mro__],
        text_of(error, str),
        text_of(error),
        text_of(error.field, str) if isinstance(error, MetadataError) else None,
        _error_data(cause, depth + 1) if cause is not None and depth < _MOST_CAUSES else None,
    )


def _error(data: ErrorData) -> BaseException:
    """Return an exception that looks like the candidate's, of the nearest class known here."""
    base = next(filter(None, map(_known_class, data.classes)))
    members = {"__str__": lambda _: data.text, "__repr__": lambda _: data.shown}
    kind: type[BaseException] = type(data.classes[0].rpartition(".")[2], (base,), members)
    error = kind.__new__(kind)
    if isinstance(error, MetadataError):
        error.field = data.field or ""
    error.__cause__ = None if data.cause is None else _error(data.cause)
    return error


def _known_class(name: str) -> type[BaseException] | None:
    if name == f"{MetadataError.__module__}.{MetadataError.__name__}":
        return MetadataError
    found = getattr(builtins, name.removeprefix("builtins."), None)
    if isinstance(found, type) and issubclass(found, BaseException):
        # A group cannot be made without its parts.
        return None if issubclass(found, BaseExceptionGroup) else found
    return None
