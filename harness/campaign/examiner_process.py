"""The examiner's process, seen from the one that starts it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

from attnproof.harness.running.errors import InfrastructureError

READY = b"ready"
"""First message of the process."""
EXAMINE, LINK = b"examine", b"link"
"""Kinds of requests."""
ANSWERED, FAILED = b"answered", b"failed"
"""Message before an answer, or before an error in words."""
_POLL_S = 0.2
"""Seconds between two calls of `meanwhile`."""
_MODULE = "attnproof.harness.campaign.examiner"


class ExaminerProcess:
    """A process that carries out one request after another; it dies with this one."""

    def __init__(self) -> None:
        """Start the process and wait until it is ready (InfrastructureError)."""
        started = time.monotonic()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", _MODULE, str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        if self._receive(lambda: None) != READY:
            raise InfrastructureError("the process of a campaign's tasks does not start")
        self.start_s = round(time.monotonic() - started, 3)

    @property
    def is_alive(self) -> bool:
        """True if it can take a request."""
        return self._process.poll() is None

    def ask(
        self, kind: bytes, data: bytes, folder: str, meanwhile: Callable[[], None] = lambda: None
    ) -> bytes:
        """Return the encoded answer to an encoded request (InfrastructureError).

        `folder` is the examination's own, and `meanwhile` is called repeatedly.
        """
        with suppress(OSError):  # `_receive` tells that it has ended
            for part in (kind, data, os.fsencode(folder)):
                self._connection.send_bytes(part)
        state, answer = self._receive(meanwhile), self._receive(lambda: None)
        if state == FAILED:
            raise InfrastructureError(answer.decode())
        return answer

    def _receive(self, meanwhile: Callable[[], None]) -> bytes:
        try:
            while not self._connection.poll(_POLL_S):
                meanwhile()
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            self.stop()
            status = self._process.returncode
            raise InfrastructureError(
                f"the process of a campaign's tasks ended with status {status}"
            ) from None

    def stop(self) -> None:
        """End the process; kill it if it is still running after a second."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._process.kill()
        self._process.wait()
