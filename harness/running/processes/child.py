"""A process that runs a candidate's code, seen from the process that judges it."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple

from attnproof.harness.phases import Phase, counted
from attnproof.harness.running import interrupt
from attnproof.harness.running.processes.channel import Exchange, ForgedError, is_silent
from attnproof.harness.running.processes.stopwatch import INTERVAL_S, Stopwatch
from attnproof.harness.running.processes.tree import memory_of

_CLOSING_S = 5.0
"""Seconds that a process may take to end once it has closed its end of the channel."""
_SURVIVOR_S = 1.0
"""Seconds that a process which a candidate started may live after the candidate's process."""


class EndKind(Enum):
    """Ways in which a child fails to reply."""

    CRASHED = auto()
    EXITED = auto()
    CLOSED_PIPE = auto()
    """The child closed the channel and kept running."""
    LATE = auto()
    """The child is running, but did not reply in time."""
    FORGED = auto()
    """Something else than a reply was written to the channel."""
    MEMORY = auto()
    """The child and its descendants held too much memory."""
    OUTPUT = auto()
    """The child wrote too much to its standard streams."""


class End(NamedTuple):
    """Reason why a child did not reply."""

    kind: EndKind
    detail: str = ""
    """Name of the signal of a crash, "status N" of an exit, memory held in GiB, or time limit."""


class Limits(NamedTuple):
    """Limits on a child and its descendants."""

    memory_bytes: int
    output_bytes: int


class Child:
    """A process that replies to messages; the caller must end it by `end` or `kill`."""

    def __init__(
        self,
        pid: int,
        connection: socket.socket,
        streams: tuple[int, ...],
        collect: Callable[[int, float, float], tuple[int | None, list[str]]],
    ) -> None:
        """Take over a started process.

        `collect(pid, grace_s, survivor_s)` kills the process after `grace_s` seconds and its
        descendants after `survivor_s`. It returns the wait status, None if it had to be killed,
        and the command lines of the descendants that were left.
        """
        self.pid = pid
        self.limits: Limits | None = None
        self.survivors: list[str] = []
        """Command lines of processes that the child left behind."""
        self._connection = connection
        self._streams = streams
        self._collect = collect
        self._ended = False
        self._ahead: Exchange | None = None
        """Message that was sent early, whose reply the next `ask` returns; None without."""
        self._seen: End | None = None
        """Reason for the last missing reply, as far as it is known before the process ends."""

    def send_ahead(self, message: bytes) -> None:
        """Send a message while the last reply is judged; the next `ask` must be of this message.

        What goes wrong shows in `ask`.
        """
        if is_silent(self._connection):
            self._ahead = Exchange(self._connection, message)
            with suppress(OSError):
                self._ahead.send()

    def ask(
        self, message: bytes, timeout_s: float, meanwhile: Callable[[], float] = lambda: 0.0
    ) -> bytes | None:
        """Send a message and return the reply; None without one (KeyboardInterrupt).

        `meanwhile` is called when the message is sent; it returns the least timeout in seconds. Its
        time does not count, and otherwise that of a `Stopwatch`.
        """
        exchange, self._ahead = self._ahead, None
        if exchange is None:
            if not is_silent(self._connection):
                self._seen = End(EndKind.FORGED)
                return None
            exchange = Exchange(self._connection, message)
        try:
            exchange.send()
            timeout_s = max(timeout_s, meanwhile())
            return self._reply(exchange, timeout_s)
        except ForgedError:
            self._seen = End(EndKind.FORGED)
        except (EOFError, OSError):  # closed, perhaps in the middle of a reply
            self._seen = End(EndKind.CLOSED_PIPE)
        return None

    @counted(Phase.RECEIVE)
    def _reply(self, exchange: Exchange, timeout_s: float) -> bytes | None:
        """Return the reply, None if a limit is reached (ForgedError, EOFError, OSError)."""
        poller, stopwatch = select.poll(), Stopwatch(self.pid)
        interval_s = min(INTERVAL_S, timeout_s)
        while True:
            exchange.send()
            reply = exchange.receive()
            if reply is not None:
                return reply
            interrupt.check()
            poller.register(
                self._connection, select.POLLIN | (0 if exchange.sent else select.POLLOUT)
            )
            poller.poll(1000 * interval_s)
            if not stopwatch.is_due(interval_s):  # a part of the reply has arrived
                continue
            self._seen = self._over_limits()
            if self._seen is None and stopwatch.look() >= timeout_s:
                self._seen = End(EndKind.LATE, f"{round(timeout_s, 2):g} s")
            if self._seen is not None:
                return None

    def end(self) -> End:
        """Kill a child that did not reply, and return the reason why it did not."""
        seen = self._seen or End(EndKind.LATE)
        status = self._finish(
            _CLOSING_S if seen.kind is EndKind.CLOSED_PIPE else 0.0,
            # Its descendants may hold that memory, and none has outlived a call.
            at_once=seen.kind is EndKind.MEMORY,
        )
        if status is None or seen.kind in (EndKind.FORGED, EndKind.MEMORY, EndKind.OUTPUT):
            return seen
        if os.WIFSIGNALED(status):
            return End(EndKind.CRASHED, _signal_name(os.WTERMSIG(status)))
        return End(EndKind.EXITED, f"status {os.WEXITSTATUS(status)}")

    def forged(self) -> None:
        """Mark the last reply as forged; the caller must call `end` next."""
        self._seen = End(EndKind.FORGED)

    def kill(self) -> None:
        """Kill the process and what it left behind; a second call does nothing."""
        self._finish(0.0)

    def memory(self) -> int:
        """Return the bytes that the child and its descendants hold now."""
        return memory_of(self.pid, 0)[0]

    def _finish(self, grace_s: float, *, at_once: bool = False) -> int | None:
        """End the process and return its wait status, None if it had to be killed.

        With `at_once` its descendants get no time to end, and are not survivors.
        """
        if self._ended:
            return None
        self._ended = True
        survivor_s = 0.0 if at_once else _SURVIVOR_S
        status, survivors = self._collect(self.pid, grace_s, survivor_s)
        self.survivors = [] if at_once else survivors
        self._connection.close()
        return status

    def _over_limits(self) -> End | None:
        if self.limits is None:
            return None
        most = self.limits.memory_bytes
        held, processes = memory_of(self.pid, most)
        if held > most:
            among = f" in {processes} processes" if processes > 1 else ""
            return End(EndKind.MEMORY, f"{held / 2**30:.1f} GiB{among}")
        if any(os.fstat(stream).st_size > self.limits.output_bytes for stream in self._streams):
            return End(EndKind.OUTPUT)
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
