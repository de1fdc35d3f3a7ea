"""The process that forks the processes of a candidate and ends everything that they start.

It is forked before the candidate is imported, so that the judging process never imports it.
It adopts the orphans among its descendants, and ends all of them when they are not needed or
when the process that judges has ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from attnproof.harness.phases import Phase, Process, counted, enter_process
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.processes.channel import FORKED_STATUS, Channel
from attnproof.harness.running.processes.child import Child
from attnproof.harness.running.processes.linux import (
    adopt_orphans,
    close_descriptors,
    die_with_parent,
)
from attnproof.harness.running.processes.stopwatch import INTERVAL_S, Stopwatch
from attnproof.harness.running.processes.tree import end_children

_ITSELF = "the process that starts a candidate's processes"
_ORDER_BYTES = 1 << 16
_REPLY_S = 120.0
"""Seconds that the launcher may take to import packages, or to end processes, by a stopwatch: under
load an engine's import takes minutes."""
_STOP_S = 3.0
"""Seconds after which a launcher is killed; its children die with it."""
_UNWANTED = {FORKED_STATUS: "a forked copy of the candidate's process"}
_REAP_POLL_S = 0.002
_ERROR_STATUS = 70
"""Exit status of a child whose `serve` raised (EX_SOFTWARE)."""


class _Start(msgspec.Struct, frozen=True, tag=True):
    order: bytes


class _Collect(msgspec.Struct, frozen=True, tag=True):
    pid: int
    grace_s: float
    survivor_s: float


class _Prepare(msgspec.Struct, frozen=True, tag=True):
    order: bytes


class _Collected(msgspec.Struct, frozen=True, tag=True):
    status: int | None
    survivors: list[str]


_Order = _Start | _Collect | _Prepare
_orders = msgspec.msgpack.Decoder(_Order)
_collected = msgspec.msgpack.Decoder(_Collected)


class Launcher:
    """The launcher, seen from the process that judges; forked anew if it was killed."""

    def __init__(
        self,
        serve: Callable[[bytes, Channel], None],
        prepare: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Fork the launcher.

        `serve` runs in each child, with the order of `start`. `prepare` runs in the launcher,
        with the order of `prepare`; children inherit what it imports.
        """
        self._serve = serve
        self._prepare = prepare
        self._control: socket.socket | None = None
        self._pid = 0

    def start(self, order: bytes, stdout: int, stderr: int) -> Child:
        """Fork a child that runs `serve`, with these descriptors as its standard streams."""
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), stdout, stderr]
        try:
            pid = int(self._ask(_Start(order), descriptors))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return Child(pid, ours, (stdout, stderr), self._collect)

    def prepare(self, order: bytes) -> None:
        """Run `prepare` in the launcher."""
        self._ask(_Prepare(order), [])

    def stop(self, grace_s: float = _STOP_S) -> None:
        """End the launcher and its descendants, by SIGKILL after `grace_s` seconds.

        A later `start` forks another one.
        """
        if self._control is None:
            return
        self._control.close()
        self._control = None
        deadline = time.monotonic() + grace_s
        while not os.waitpid(self._pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
                break
            time.sleep(_REAP_POLL_S)

    def _collect(self, pid: int, grace_s: float, survivor_s: float) -> tuple[int | None, list[str]]:
        order = _Collect(pid, grace_s, survivor_s)
        try:
            collected = _collected.decode(self._ask(order, [], again=False))
        except InfrastructureError:  # the launcher was killed: its children died with it
            return None, []
        return collected.status, collected.survivors

    def _ask(self, order: _Order, descriptors: list[int], *, again: bool = True) -> bytes:
        """Return the reply to an order; with `again` a launcher that was killed is replaced."""
        if self._control is None:
            self._fork()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(order)], descriptors)
            reply = self._reply(self._control, interruptible=again)
        except OSError:
            reply = b""
        except (KeyboardInterrupt, InfrastructureError):
            # An import neither ends nor has descendants yet.
            self.stop(0.0 if isinstance(order, _Prepare) else _STOP_S)
            raise
        if reply:
            return reply
        self.stop()
        if not again:
            raise InfrastructureError(f"{_ITSELF} was killed")
        return self._ask(order, descriptors, again=False)

    def _reply(self, control: socket.socket, *, interruptible: bool) -> bytes:
        """Return the launcher's reply, empty bytes if it has ended.

        Raises KeyboardInterrupt, and InfrastructureError if the reply is late.
        """
        poller, stopwatch = select.poll(), Stopwatch(self._pid)
        poller.register(control, select.POLLIN)
        while not poller.poll(1000 * INTERVAL_S):
            if interruptible:
                interrupt.check()
            if stopwatch.look() > _REPLY_S:
                raise InfrastructureError(f"{_ITSELF} does not answer within {_REPLY_S:g} s")
        return control.recv(_ORDER_BYTES)

    def _fork(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            try:
                _launch(theirs, parent, self._serve, self._prepare)
            finally:
                os._exit(_ERROR_STATUS)
        theirs.close()
        self._control = ours


def _launch(
    control: socket.socket,
    parent: int,
    serve: Callable[[bytes, Channel], None],
    prepare: Callable[[bytes], None],
) -> None:
    """Carry out orders until the parent ends or closes the socket; then end all descendants."""
    # A signal to the whole group, as Ctrl-C and `timeout` send it, is for the process that judges.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    enter_process(Process.LAUNCHER)
    close_descriptors(control.fileno())
    adopt_orphans()
    with suppress(OSError):
        while os.getppid() == parent:
            data, descriptors, _, _ = socket.recv_fds(control, _ORDER_BYTES, 3)
            if not data:
                break
            control.send(_carried_out(_orders.decode(data), descriptors, serve, prepare))
    end_children(0.0)
    os._exit(0)


@counted(Phase.START)
def _carried_out(
    order: Any,
    descriptors: list[int],
    serve: Callable[[bytes, Channel], None],
    prepare: Callable[[bytes], None],
) -> bytes:
    if isinstance(order, _Collect):
        status = _reaped(order.pid, order.grace_s)
        survivors = end_children(order.survivor_s, group=order.pid, unwanted=_UNWANTED)
        return msgspec.msgpack.encode(_Collected(status, survivors))
    if isinstance(order, _Prepare):
        prepare(order.order)
        return b"prepared"
    launcher = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            channel = _enter(descriptors, launcher)
            serve(order.order, channel)
            os._exit(0)
        except BaseException:
            # To the descriptor: `sys.stderr` is perhaps another object in the parent.
            os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
        finally:
            os._exit(_ERROR_STATUS)
    for descriptor in descriptors:
        os.close(descriptor)
    return b"%d" % pid


def _enter(descriptors: list[int], launcher: int) -> Channel:
    """Make this process a session of its own, with its streams and one other descriptor."""
    die_with_parent(launcher, signal.SIGKILL)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # processes of the candidate inherit it
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for stream, descriptor in enumerate((nowhere, *descriptors[1:])):
        os.dup2(descriptor, stream)
    close_descriptors(descriptors[0])
    return Channel(socket.socket(fileno=descriptors[0]))


def _reaped(pid: int, grace_s: float) -> int | None:
    """End the process; return its wait status, None if it was running after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    while True:
        try:
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended_pid:
            return status
        if time.monotonic() >= deadline:
            break
        time.sleep(_REAP_POLL_S)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
