"""The timing process: one forked process with all candidates of a lane, one group at a time.

If a candidate kills that process or hangs, a fresh process replaces it. The candidates of the
group are then timed one by one, and only the candidate that fails has no time.
"""

from __future__ import annotations

import faulthandler
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.processes.channel import Channel, messages
from attnproof.harness.running.processes.child import Child, End, EndKind
from attnproof.harness.running.processes.launcher import Launcher
from attnproof.harness.timing.plan.entries import (
    Broken,
    Entry,
    FailureKind,
    Measured,
    Reply,
    Request,
    StepEntry,
    TimingFailure,
)
from attnproof.harness.timing.process.contest import Contest
from attnproof.harness.timing.process.paired import Budget

_GRACE_S = 60.0
"""Seconds that a group may take beyond its budget, in which candidates compile."""
_MOST_DEATHS = 3
"""Deaths after which a candidate is not timed any more: each hang costs a minute or two."""
_GIVEN_UP = TimingFailure(
    FailureKind.GIVEN_UP,
    f"crashed or hung {_MOST_DEATHS} times while it was timed, and is given up",
)
_decoder = msgspec.msgpack.Decoder(Reply)


@dataclass
class TimingProcess:
    """The parent's side: sends entries to the timing process, replaces it if it dies."""

    candidates: Sequence[Candidate]
    entries: Sequence[Entry | StepEntry]
    _child: Child | None = field(default=None, repr=False)
    _launcher: Launcher | None = field(default=None, repr=False)
    _deaths: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> TimingProcess:
        self._launcher = Launcher(self._serve)
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
        if self._launcher is not None:
            self._launcher.stop()

    def measure(
        self, index: int, budget: Budget, names: Sequence[str] = (), *, itself: bool = False
    ) -> Measured:
        """Time an entry; candidates that die are failures (InfrastructureError).

        `names` are the candidates to time, all of the entry's if empty.
        """
        chosen = names or self.entries[index].names
        names = tuple(name for name in chosen if self._deaths[name] < _MOST_DEATHS)
        if len(names) < len(chosen):
            rest = self.measure(index, budget, names, itself=itself) if names else Measured([])
            failures = {name: _GIVEN_UP for name in chosen if name not in names}
            return msgspec.structs.replace(rest, failures=failures | rest.failures)
        limits = (budget.seconds, budget.least_rounds, budget.most_rounds)
        reply = self._ask(Request(index, names, limits, itself))
        if isinstance(reply, Measured):
            return reply
        if len(names) == 1:
            self._deaths[names[0]] += 1
            return Measured([], {names[0]: reply})
        alone = [self.measure(index, budget, [name], itself=itself) for name in names]
        return Measured(
            [sample for measured in alone for sample in measured.samples],
            {name: failure for measured in alone for name, failure in measured.failures.items()},
            max(measured.control_ns for measured in alone),
            next((measured.work for measured in alone if measured.work), None),
            together=False,
        )

    def _ask(self, request: Request) -> Measured | TimingFailure:
        """Return the answer, or the failure of a process that ended without one."""
        assert self._child is not None
        message = msgspec.msgpack.encode(request)
        seconds = _GRACE_S + 10 * request.budget[0]
        data = self._child.ask(message, seconds)
        if data is None:
            end = self._child.end()
            self._start()
            return TimingFailure(FailureKind.DIED, f"{_end_text(end, seconds)} while it was timed")
        try:
            reply: Reply = _decoder.decode(data)
        except msgspec.DecodeError:  # a candidate has written to the pipe
            self._child.kill()
            self._start()
            return TimingFailure(FailureKind.DIED, "wrote to the harness's pipe while it was timed")
        if isinstance(reply, Broken):
            raise InfrastructureError(reply.reason)
        return reply

    def _start(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # output of a candidate is not a result
        assert self._launcher is not None
        try:
            self._child = self._launcher.start(b"", nowhere, nowhere)
        finally:
            os.close(nowhere)

    def _serve(self, _order: bytes, channel: Channel) -> None:
        """Answer in the child until the parent closes the pipe."""
        faulthandler.disable()
        contest = Contest(self.candidates, self.entries)
        for message in messages(channel):
            reply: Reply
            try:
                reply = contest.answer(msgspec.msgpack.decode(message, type=Request))
            except InfrastructureError as error:
                reply = Broken(str(error))
            channel.send(msgspec.msgpack.encode(reply))


def _end_text(end: End, seconds: float) -> str:
    match end.kind:
        case EndKind.CRASHED:
            return f"crashed with {end.detail}"
        case EndKind.EXITED:
            return f"ended the process with {end.detail}"
        case EndKind.CLOSED_PIPE:
            return "closed the channel to the harness and went on"
        case EndKind.LATE:
            return f"did not end within {seconds:g} s"
        case EndKind.FORGED:
            return "wrote to the channel of the harness"
        case EndKind.MEMORY | EndKind.OUTPUT:
            return "exceeded a limit"
