"""Everything that is timed, one group at a time, in one forked process with all candidates.

The process that keeps the results only asks. If a candidate kills the process that
times, or hangs, a fresh one goes on, and those of the group are timed alone: whoever is to
blame has no time, nobody else loses one.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.processes import ended
from attnproof.harness.timing.plan.entries import Ask, Broken, Entry, Measured, Reply, StepEntry
from attnproof.harness.timing.process.contest import Contest
from attnproof.harness.timing.process.paired import Budget

_LOOK_UP_S = 0.1
_PATIENCE_S = 60.0
"""A group may take so much longer than its budget: what is compiled is compiled in it."""
_MOST_DEATHS = 3
"""Of one candidate: a hang costs a minute, twice that in a group, and each entry may hang."""
_DYING_S = 5.0
"""What the process may take to die once its end of the pipe is closed."""

_decoder = msgspec.msgpack.Decoder(Reply)
Answer = Callable[[Ask], Measured]


@dataclass
class TimingProcess:
    """The parent's side: asks the process that times, starts another when it dies."""

    candidates: Sequence[Candidate]
    entries: Sequence[Entry | StepEntry]
    _pid: int = 0
    _connection: Connection | None = field(default=None, repr=False)
    _deaths: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> TimingProcess:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def measure(
        self, place: int, budget: Budget, names: Sequence[str] = (), *, itself: bool = False
    ) -> Measured:
        """The samples of an entry; a candidate that dies has none (InfrastructureError)."""
        asked = names or self.entries[place].names
        names = tuple(name for name in asked if self._deaths[name] < _MOST_DEATHS)
        given_up = f"crashed or hung {_MOST_DEATHS} times while it was timed, and is given up"
        wrong = {name: given_up for name in asked if name not in names}
        if wrong:
            rest = self.measure(place, budget, names, itself=itself) if names else Measured([])
            return msgspec.structs.replace(rest, wrong=wrong | rest.wrong)
        limits = (budget.seconds, budget.least_rounds, budget.most_rounds)
        reply = self._ask(Ask(place, names, limits, itself))
        if isinstance(reply, Measured):
            return reply
        if len(names) == 1:
            self._deaths[names[0]] += 1
            return Measured([], {names[0]: reply})
        alone = [self.measure(place, budget, [name], itself=itself) for name in names]
        return Measured(
            [sample for one in alone for sample in one.samples],
            {name: reason for one in alone for name, reason in one.wrong.items()},
            max(one.control_ns for one in alone),
            together=False,
        )

    def _ask(self, ask: Ask) -> Measured | str:
        """The answer, or what became of the process."""
        assert self._connection is not None
        deadline = time.monotonic() + _PATIENCE_S + 10 * ask.budget[0]
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(ask))
            while not self._connection.poll(_LOOK_UP_S):
                interrupt.check()
                if time.monotonic() > deadline:
                    self._stop()
                    self._start()
                    return f"did not end within {_PATIENCE_S:g} s while it was timed"
            reply: Reply = _decoder.decode(self._connection.recv_bytes())
        except (EOFError, OSError):  # closed, in the middle of a reply too
            how = self._bury()
            self._start()
            return f"{how} while it was timed"
        if isinstance(reply, Broken):
            raise InfrastructureError(reply.reason)
        return reply

    def _start(self) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            ours.close()
            try:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                faulthandler.disable()
                for stream in (1, 2):  # what a candidate prints is nobody's result
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
                _serve(Contest(self.candidates, self.entries).answer, theirs)
            finally:
                os._exit(70)
        theirs.close()
        self._pid, self._connection = pid, ours

    def _bury(self) -> str:
        status = ended(self._pid, _DYING_S)
        if status is None:
            self._stop()
            return "closed its pipe and went on"
        self._pid = 0
        self._stop()
        if os.WIFSIGNALED(status):
            return f"crashed with {signal.Signals(os.WTERMSIG(status)).name}"
        return f"ended the process with status {os.WEXITSTATUS(status)}"

    def _stop(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _serve(answer: Answer, connection: Connection) -> None:
    """Answer until the parent closes the connection."""
    while True:
        try:
            ask = msgspec.msgpack.decode(connection.recv_bytes(), type=Ask)
        except EOFError:
            return
        reply: Reply
        try:
            reply = answer(ask)
        except InfrastructureError as error:
            reply = Broken(str(error))
        connection.send_bytes(msgspec.msgpack.encode(reply))
