"""Framed messages between a process of a candidate and the process that judges it.

Each request has a nonce, which its reply must repeat. Bytes that are no such frame were
written by the candidate, or by a process that it forked.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Iterator

from attnproof.harness.phases import Phase, counted

_HEADER = struct.Struct("!4s16sQ")
"""Mark, nonce, and length of the payload in bytes."""
_MARK = b"\xa7npf"
_MOST_BYTES = 1 << 30
"""Maximal size of a message."""
_CHUNK = 1 << 16
FORKED_STATUS = 71
"""Exit status of a process that the candidate forked and that returned into the harness."""


class ForgedError(Exception):
    """Bytes that are not the reply to the request."""


class Channel:
    """The end of the process that replies."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._nonce = b""
        self._pid = os.getpid()

    @counted(Phase.RECEIVE)
    def receive(self) -> bytes | None:
        """Return the next request, None after the last one."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        _, self._nonce, size = _HEADER.unpack(header)
        return self._read(size)

    @counted(Phase.SEND)
    def send(self, payload: bytes) -> None:
        """Reply to the last request."""
        self.end_forked()
        self._socket.sendall(_HEADER.pack(_MARK, self._nonce, len(payload)))
        self._socket.sendall(payload)

    def end_forked(self) -> None:
        """End this process if the candidate has forked it."""
        if os.getpid() != self._pid:
            os._exit(FORKED_STATUS)

    def _read(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            chunk = self._socket.recv(min(_CHUNK, size - len(data)))
            if not chunk or os.getpid() != self._pid:
                return None
            data += chunk
        return bytes(data)


def messages(channel: Channel) -> Iterator[bytes]:
    """Yield the requests until the other process closes the channel."""
    while (message := channel.receive()) is not None:
        yield message


class Exchange:
    """One request and the bytes of its reply that have arrived, in the process that asks."""

    def __init__(self, connection: socket.socket, payload: bytes) -> None:
        self._socket = connection
        self._nonce = secrets.token_bytes(16)
        self._unsent = memoryview(_HEADER.pack(_MARK, self._nonce, len(payload)) + payload)
        self._received = bytearray()

    @property
    def sent(self) -> bool:
        """True if the whole request is sent."""
        return not self._unsent

    @counted(Phase.SEND)
    def send(self) -> None:
        """Send what can be sent without waiting (OSError if the channel is closed)."""
        if self.sent:
            return
        try:
            count = self._socket.send(self._unsent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        self._unsent = self._unsent[count:]

    def receive(self) -> bytes | None:
        """Read what has arrived; return the reply if it is whole, None if not.

        Raises ForgedError, and EOFError if the channel is closed.
        """
        try:
            chunk = self._socket.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not chunk:
            raise EOFError
        self._received += chunk
        if len(self._received) < _HEADER.size:
            if not _MARK.startswith(self._received[: len(_MARK)]):
                raise ForgedError
            return None
        mark, nonce, size = _HEADER.unpack_from(self._received)
        if mark != _MARK or nonce != self._nonce or size > _MOST_BYTES:
            raise ForgedError
        if len(self._received) > _HEADER.size + size:
            raise ForgedError
        if len(self._received) < _HEADER.size + size:
            return None
        return bytes(self._received[_HEADER.size :])


def is_silent(connection: socket.socket) -> bool:
    """True if nothing has arrived between two requests."""
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:  # closed: the next request finds that out
        return True
