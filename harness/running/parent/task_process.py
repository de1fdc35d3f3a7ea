"""A process that examines operations of one candidate: start it, order, and read its messages."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from attnproof.harness.escaping import escape_lines
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, OperationResult, Reason
from attnproof.harness.phases import Process, enter_process
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import AttnproofError
from attnproof.harness.running.parent.plan import Plan, Skip, steps_on
from attnproof.harness.running.processes.linux import adopt_orphans, die_with_parent
from attnproof.harness.running.processes.tree import end_children
from attnproof.harness.running.task.candidate_process import launching
from attnproof.harness.running.task.task import BEFORE_FIRST_CASE, Outcome, examine

_FAULT = b"fault"
"""Message before the error or traceback of a task that failed, which is the next message."""
_OUTCOME = b"outcome"
"""Message before a task's outcome, which is the next message. Others are interim outcomes."""


class Order(msgspec.Struct, frozen=True):
    """One examination of a task."""

    index: int
    """Index of the operation in the plan."""
    exchanged: tuple[str, ...]
    """Functions that are exchanged for the reference's, as they fail by themselves."""


@dataclass
class TaskProcess:
    """A process that examines operations of one candidate, one after another."""

    operation: Operation
    candidate: Candidate
    process: multiprocessing.process.BaseProcess
    connection: Connection
    packages: set[str] = field(default_factory=set)
    """Packages that the process has imported for its operations."""
    died: bool = False
    interim: Outcome | None = None
    """Outcome of the operation if the process is killed now."""

    @classmethod
    def start(
        cls, plan: Plan, folder: Path, operation: Operation, candidate: Candidate, order: Order
    ) -> TaskProcess:
        """Start a process that carries out the order, then those that it is sent."""
        ours, theirs = multiprocessing.Pipe()
        number = [each.name for each in plan.candidates].index(candidate.name)
        parent = os.getpid()

        def drive() -> None:
            enter_process(Process.TASK)
            interrupt.listen(parent)
            die_with_parent(parent, signal.SIGKILL)  # it may be inside a call for long
            adopt_orphans()
            ours.close()
            try:
                _examine_all(plan, candidate, order, folder / f"ledger-{number:03}", theirs)
            except Exception as error:  # an error of the harness, or of the machine
                text = f"{error}\n"
                if not isinstance(error, AttnproofError):
                    text = "".join(traceback.format_exception(error))
                theirs.send_bytes(_FAULT)
                theirs.send_bytes(text.encode(errors="backslashreplace"))
            end_children(0.0)
            os._exit(0)  # a normal exit would wait for threads that an engine has started

        process = multiprocessing.get_context("fork").Process(target=drive)
        process.start()
        theirs.close()
        return cls(operation, candidate, process, ours)

    @property
    def waitables(self) -> tuple[Connection, int]:
        """Connection and sentinel, for a wait until a message arrives or the process ends."""
        return self.connection, self.process.sentinel

    def send(self, order: bytes) -> None:
        """Send the next order; empty bytes stop the task."""
        with suppress(OSError):  # the next `receive` reports a task that died
            self.connection.send_bytes(order)

    def stop(self) -> None:
        """End the process, which has carried out its order."""
        self.send(b"")
        self.process.join()
        self.connection.close()

    def receive(self, *, interrupted: bool) -> Outcome | None:
        """Read one message; return the outcome, None for an interim one, which is kept.

        A process that died has an outcome too, in which the run may be `interrupted`.
        """
        try:
            if not self.connection.poll():  # it was killed, and others hold its pipe
                raise EOFError
            data = self.connection.recv_bytes()
            if data == _OUTCOME:
                return msgspec.msgpack.decode(self.connection.recv_bytes(), type=Outcome)
            if data == _FAULT:
                fault = escape_lines(self.connection.recv_bytes().decode())
                return self._ended_early(fault, interrupted=interrupted)
        except (EOFError, OSError):
            return self._ended_early("", interrupted=interrupted)
        self.interim = msgspec.msgpack.decode(data, type=Outcome)
        return None

    def _ended_early(self, fault: str, *, interrupted: bool) -> Outcome:
        """Return what the task has so far; `fault` is its error or traceback, or ""."""
        self.died = True
        if not fault:
            self.process.kill()
        self.process.join()
        cause, text = Cause.TASK_DIED, f"its process ended with status {self.process.exitcode}"
        if interrupted and not fault:
            cause, text = Cause.INTERRUPTED, BEFORE_FIRST_CASE
            if self.interim is not None:
                text = self.interim.result.reason
        if fault:
            text = f"the harness failed: {fault.splitlines()[-1]}"
            print(fault, file=sys.stderr)
        if self.interim is None:
            skip = Skip("UNVERIFIED", Reason(cause, text, fault))
            return skipped(self.operation, self.candidate, skip)
        result = msgspec.structs.replace(self.interim.result, reason=text, cause=cause, log=fault)
        return msgspec.structs.replace(self.interim, result=result)


def skipped(operation: Operation, candidate: Candidate, skip: Skip) -> Outcome:
    """Return the outcome of a pair that is not examined."""
    result = OperationResult(
        name=operation.name,
        section=operation.section,
        candidate=candidate.name,
        device=candidate.lane,
        verdict=skip.verdict,
        reason=skip.reason.text,
        cause=skip.reason.cause,
        log=skip.reason.log,
    )
    return Outcome(result, [])


def _examine_all(
    plan: Plan, candidate: Candidate, order: Order, ledger: Path, parent: Connection
) -> None:
    """Carry out the order, then those that the parent sends; send each outcome."""
    by = launching(candidate, {each.name: each for each in plan.operations})
    while True:
        examined = plan.operations[order.index]
        with suppress(KeyboardInterrupt):  # `examine` sees the interrupt too, and reports it
            by.launcher.prepare(examined.name.encode())
        outcome = examine(
            examined,
            candidate,
            plan.settings,
            steps_on(candidate, plan.steps, plan.settings.costly_share),
            plan.corpus,
            ledger.with_name(f"{ledger.name}-{order.index:03}.jsonl"),
            lambda interim: parent.send_bytes(msgspec.msgpack.encode(interim)),
            by,
            order.exchanged,
        )
        encoded = msgspec.msgpack.encode(outcome)
        parent.send_bytes(_OUTCOME)
        parent.send_bytes(encoded)
        following = parent.recv_bytes()
        if not following:
            break
        order = msgspec.msgpack.decode(following, type=Order)
    by.launcher.stop()
