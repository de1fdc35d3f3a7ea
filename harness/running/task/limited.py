"""A process that computes what others wrote, within limits that the kernel enforces.

Limits inside of an evaluator count what its author thought of; one call of `sum`, a power or a
format specification escapes them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from attnproof.harness.running.processes.linux import (
    close_descriptors,
    die_with_parent,
    limit_memory,
)

CPU_S = 1.0
"""Maximum CPU time of a call in seconds."""
MEMORY_BYTES = 1 << 28
"""Maximum address space beyond that of the process at its start."""


class LimitedProcess:
    """A forked process that calls a function; a call that exceeds a limit ends it."""

    def __init__(self, function: Callable[[bytes], bytes]) -> None:
        self._owner = os.getpid()
        self._connection, theirs = Pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                _serve(function, theirs, self._owner)
            finally:
                os._exit(0)
        theirs.close()

    def is_usable(self) -> bool:
        """True if it runs, and this process has started it."""
        if self._owner != os.getpid():
            return False
        with suppress(ChildProcessError):  # ended and collected with all children of a task
            return not os.waitpid(self._pid, os.WNOHANG)[0]
        return False

    def call(self, request: bytes) -> bytes | None:
        """Return the function's result, None if the call exceeded a limit."""
        try:
            self._connection.send_bytes(request)
            return self._connection.recv_bytes()
        except (OSError, EOFError):
            self._connection.close()
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            return None


def _serve(function: Callable[[bytes], bytes], parent: Connection, owner: int) -> None:
    """Reply to each request until the parent closes its end."""
    die_with_parent(owner, signal.SIGKILL)
    close_descriptors(parent.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, also inside of a long call
    limit_memory(MEMORY_BYTES)
    while True:
        request = parent.recv_bytes()
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        reply = function(request)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        parent.send_bytes(reply)
