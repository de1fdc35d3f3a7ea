"""A forked child process and the pipe to it: messages, timeouts, and how the child ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple

from attnproof.harness.running import interrupt

_POLL_S = 0.1
"""Seconds between two checks for a request to stop, while waiting for a reply."""
_REAP_POLL_S = 0.01
_CLOSING_S = 5.0
"""Seconds that a process may take to end once it has closed its end of the pipe."""
_DRAIN_S = 0.2
_ERROR_STATUS = 70
"""Exit status of a child whose `serve` raised (EX_SOFTWARE)."""


class EndKind(Enum):
    """Ways in which a child fails to reply."""

    CRASHED = auto()
    EXITED = auto()
    CLOSED_PIPE = auto()
    """The child closed the pipe and kept running."""
    LATE = auto()
    """The child is running, but did not reply in time."""


class End(NamedTuple):
    """Reason why a child did not reply."""

    kind: EndKind
    detail: str = ""
    """Name of the signal of a crash, such as "SIGSEGV"; "status N" of an exit."""


class Child:
    """A forked process that replies to messages; the caller must end it by `kill`."""

    def __init__(self, serve: Callable[[Connection], None], *, stdout: int, stderr: int) -> None:
        """Fork; the child runs `serve` on its end of the pipe, then exits.

        `stdout` and `stderr` are file descriptors for the child's standard streams; the caller
        closes its own copies.
        """
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            status = _ERROR_STATUS
            try:
                ours.close()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.dup2(stdout, 1)
                os.dup2(stderr, 2)
                serve(theirs)
                status = 0
            finally:
                os._exit(status)
        theirs.close()
        self._pid = pid
        self._connection = ours

    def ask(self, message: bytes, timeout_s: float) -> bytes | None:
        """Send a message and return the reply; None if it is late or the pipe is closed."""
        try:
            self._connection.send_bytes(message)
        except OSError:  # the child has closed its end
            return None
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the next reply; None if it is late or the pipe is closed (KeyboardInterrupt)."""
        deadline = time.monotonic() + timeout_s
        try:
            while not self._connection.poll(min(_POLL_S, timeout_s)):
                interrupt.check()
                if time.monotonic() >= deadline:
                    return None
            return self._connection.recv_bytes()
        except (EOFError, OSError):  # closed, perhaps in the middle of a reply
            return None

    def end(self) -> End:
        """Kill a child that did not reply, and return the reason why it did not."""
        status = self._reaped(0)
        closed = status is None and self._has_closed_pipe()
        if closed:  # usually because the process is ending
            status = self._reaped(_CLOSING_S)
        self.kill()
        if status is None:
            return End(EndKind.CLOSED_PIPE if closed else EndKind.LATE)
        if os.WIFSIGNALED(status):
            return End(EndKind.CRASHED, signal.Signals(os.WTERMSIG(status)).name)
        return End(EndKind.EXITED, f"status {os.WEXITSTATUS(status)}")

    def kill(self) -> None:
        """Kill the process and close the pipe; a second call does nothing."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        self._connection.close()

    def _reaped(self, within_s: float) -> int | None:
        """Wait for the process to end by itself; return its wait status, None if it is running."""
        deadline = time.monotonic() + within_s
        while True:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            if found:
                self._pid = 0
                return status
            if time.monotonic() >= deadline:
                return None
            time.sleep(_REAP_POLL_S)

    def _has_closed_pipe(self) -> bool:
        """True if the child's end of the pipe is closed; a late reply is read and dropped."""
        try:
            while self._connection.poll(_DRAIN_S):
                self._connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False


def messages(connection: Connection) -> Iterator[bytes]:
    """Yield the parent's messages, in the child, until the parent closes the pipe."""
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        yield message
