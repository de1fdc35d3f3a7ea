"""The process that runs a candidate: start it, ask it, and tell how it ended."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import PROCESS, Failure
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.loading import preload, preload_package
from attnproof.harness.running.processes.child import Child, EndKind, Limits
from attnproof.harness.running.processes.launcher import Launcher
from attnproof.harness.running.worker.worker import (
    IMPORT,
    Lost,
    Order,
    Ready,
    Reply,
    Unloadable,
    serve,
)

_LOG_BYTES = 4000
"""Bytes of standard error that a failure shows."""
_MOST_OUTPUT = 64 << 20
"""Bytes that one case may write to the standard streams."""
LATE = "does not answer"
"""Kind of death of a hang."""
_decoder = msgspec.msgpack.Decoder(Reply)
_KINDS_OF_DEATH = {
    EndKind.CRASHED: "crashes",
    EndKind.EXITED: "ends the process",
    EndKind.CLOSED_PIPE: "closes the channel to the harness and goes on",
    EndKind.LATE: LATE,
    EndKind.FORGED: "writes to the channel of the harness",
    EndKind.MEMORY: "uses more memory than --memory allows",
    EndKind.OUTPUT: "floods its standard streams",
}


class CandidateUnloadableError(InfrastructureError):
    """The candidate's import failed or did not end in time."""


class Launching(NamedTuple):
    """The process that forks workers of one candidate, and the memory shared with them."""

    launcher: Launcher
    memory: SharedMemory


def launching(candidate: Candidate, operations: dict[str, Operation]) -> Launching:
    """Return a launcher of workers for these operations; the caller must stop it.

    Call it before the process imports anything of the candidate.
    """
    try:
        memory = SharedMemory()
    except MemoryError as error:
        raise InfrastructureError(f"{error}: a limit such as `ulimit -v` is too low") from None

    def prepare(name: bytes) -> None:
        preload(candidate)
        if name:
            preload_package(candidate, operations[name.decode()])

    return Launching(Launcher(partial(serve, operations, memory), prepare), memory)


class CandidateProcess:
    """A process with one candidate, and its successors when it has ended."""

    def __init__(
        self,
        candidate: Candidate,
        operations: list[str],
        memory_bytes: int,
        launcher: Launcher,
        exchanged: tuple[str, ...] = (),
    ) -> None:
        """`memory_bytes` may be allocated beyond those of the process after its import."""
        self.survivors: list[str] = []
        """Command lines of processes that were left behind by the processes so far."""
        self._name = candidate.name
        # Pickled: a path may hold bytes that are no UTF-8.
        self._order = pickle.dumps(Order(candidate, operations, memory_bytes, exchanged))
        self._memory_bytes = memory_bytes
        self._launcher = launcher
        self._child: Child | None = None
        self._baseline = 0
        """Bytes that the process holds when it has imported the candidate."""
        self._unloadable = ""
        """Reason why the last start failed."""
        self._streams = (os.memfd_create("candidate-stdout"), os.memfd_create("candidate-stderr"))

    @property
    def runs(self) -> bool:
        """True if a process was started and not ended."""
        return self._child is not None

    @counted(Phase.START)
    def start(self, import_s: float) -> Ready:
        """Fork a process and return its reply when it has imported the candidate.

        A process that dies is replaced once. Raises CandidateUnloadableError,
        InfrastructureError, KeyboardInterrupt.
        """
        for _ in range(2):
            child = self._child = self._forked()
            reply = self.ask(IMPORT, import_s)
            if isinstance(reply, Ready):
                # Only once: to read it takes longer than to fork the process.
                self._baseline = self._baseline or child.memory()
                child.limits = Limits(self._memory_bytes + self._baseline, _MOST_OUTPUT)
                return reply
            kind, detail = ("", "") if isinstance(reply, Unloadable) else self._death()
            reason = reply.reason if isinstance(reply, Unloadable) else _in_words(kind, detail)
            if kind and (log := self._log().strip()):
                reason += f": {log.splitlines()[-1][:300]}"
            self.end()
            if kind in ("", LATE):
                break
        self._unloadable = f"candidate {self._name} cannot be imported: {reason}"
        raise CandidateUnloadableError(self._unloadable)

    def ask(
        self, message: bytes, timeout_s: float, meanwhile: Callable[[], float] = lambda: 0.0
    ) -> Reply | None:
        """Send a message and return the reply; None without one (KeyboardInterrupt).

        `meanwhile` is called when the message is sent; it returns the least timeout in seconds.
        Raises CandidateUnloadableError if there is no process.
        """
        if self._child is None:
            raise CandidateUnloadableError(self._unloadable)
        data = self._child.ask(message, timeout_s, meanwhile)
        if data is None:
            return None
        try:
            reply: Reply = _decoder.decode(data)
        except msgspec.MsgspecError:
            self._child.forged()
            return None
        return reply

    def send_ahead(self, message: bytes) -> None:
        """Send a message before its `ask`, which must be the next one."""
        if self._child is not None:
            self._child.send_ahead(message)

    def forged(self) -> None:
        """Note that the last reply was not a reply; the caller must call `death`."""
        assert self._child is not None
        self._child.forged()

    def death(self, reply: Reply | None) -> Failure:
        """End the process; return the way in which it failed to reply, as a failure."""
        if isinstance(reply, Lost):
            kind, detail, log = "loses the device", reply.reason, reply.log
        else:
            kind, detail = self._death()
            log = self._log()
        self.end()
        diagnosis = _in_words(kind, detail)
        return Failure(
            oracle=PROCESS,
            field=kind,
            diagnosis=diagnosis,
            message=f"the candidate {diagnosis}",
            expected="a result",
            got=diagnosis,
            log=log,
        )

    @counted(Phase.START)
    def end(self) -> None:
        """Kill the process and those that it started."""
        if self._child is not None:
            self._child.kill()
            self.survivors += self._child.survivors
            self._child = None

    def close(self) -> None:
        """Kill the process; close what was opened here."""
        self.end()
        for stream in self._streams:
            os.close(stream)

    def _forked(self) -> Child:
        for stream in self._streams:
            os.ftruncate(stream, 0)
            os.lseek(stream, 0, os.SEEK_SET)
        try:
            child = self._launcher.start(self._order, *self._streams)
        except OSError as error:
            raise InfrastructureError(f"a process cannot be started: {error.strerror}") from None
        known = self._baseline or self._memory_bytes
        child.limits = Limits(self._memory_bytes + known, _MOST_OUTPUT)
        return child

    def _log(self) -> str:
        """Return what the process wrote to its standard error."""
        return os.pread(self._streams[1], _LOG_BYTES, 0).decode(errors="replace")

    def _death(self) -> tuple[str, str]:
        """Kill the process that did not reply; return how it ended: a verb phrase, a detail."""
        assert self._child is not None
        kind, detail = self._child.end()
        return _KINDS_OF_DEATH[kind], detail


def _in_words(kind: str, detail: str) -> str:
    within = "within" if kind == LATE else "with"
    return f"{kind} {within} {detail}" if detail else kind
