"""Run the tasks of all operations and candidates, a few at a time, each in its own process."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from attnproof.harness.escaping import escape_lines
from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, OperationResult, Reason
from attnproof.harness.phases import Process, enter_process
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import imports_once
from attnproof.harness.running.errors import AttnproofError
from attnproof.harness.running.parent.plan import Plan, Skip, find_skip, steps_on
from attnproof.harness.running.parent.root_causes import link
from attnproof.harness.running.processes.linux import adopt_orphans, die_with_parent
from attnproof.harness.running.processes.tree import children_of, end_children
from attnproof.harness.running.task.candidate_process import launching
from attnproof.harness.running.task.task import BEFORE_FIRST_CASE, Outcome, examine
from attnproof.harness.running.worker.worker import warm_up

_STOPPING_S = 4.0
"""Seconds that running tasks may take to end after an interrupt."""
_FAULT = b"fault"
"""Message before the error or traceback of a task that failed, which is the next message."""
_OUTCOME = b"outcome"
"""Message before a task's outcome, which is the next message. Others are interim outcomes."""
_Pair = tuple[Operation, Candidate]


@dataclass(frozen=True)
class ProgressCallbacks:
    """Callbacks for run progress; their str arguments name an operation and a candidate."""

    planned: Callable[[int], None]
    """Called once with the number of tasks."""
    started: Callable[[str, str], None]
    progressed: Callable[[str, str, int], None]
    """Called repeatedly with the number of cases so far."""
    ended: Callable[[Outcome], None]
    tick: Callable[[], None]
    """Called several times a second."""
    failing: Callable[[Outcome], None] = lambda _interim: None
    """Called with the interim outcome that has an operation's first finding."""


class _Order(msgspec.Struct, frozen=True):
    """One examination of a task."""

    index: int
    """Index of the operation in the plan."""
    exchanged: tuple[str, ...]
    """Functions that are exchanged for the reference's, as they fail by themselves."""


@dataclass
class _Task:
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


@dataclass
class _Session:
    """Waiting pairs and running tasks of a run, and the outcomes of the other pairs."""

    plan: Plan
    folder: Path
    callbacks: ProgressCallbacks
    waiting: list[_Pair] = field(default_factory=list)
    running: list[_Task] = field(default_factory=list)
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    """Outcomes by names of operation and candidate."""
    interrupted: bool = False

    def schedule(self) -> None:
        """Record an outcome for each pair that is skipped, and queue the other pairs."""
        for candidate in self.plan.candidates:
            for operation in self.plan.operations:
                skip = find_skip(operation, candidate)
                lacking = self.plan.lacking.get(candidate.name, {}).get(operation.name)
                if skip is None and lacking is not None:
                    skip = Skip("NOT OFFERED", lacking)
                if skip is None:
                    self.waiting.append((operation, candidate))
                else:
                    self._skip(operation, candidate, skip)
        # Longest tasks first: otherwise they run alone at the end.
        self.waiting.sort(key=lambda pair: _cost(*pair), reverse=True)
        self.callbacks.planned(len(self.waiting))

    def work(self) -> None:
        """Start waiting tasks as others end, until all have ended (KeyboardInterrupt)."""
        while self.waiting or self.running:
            interrupt.check()
            while len(self.running) < self.plan.jobs and (ready := self._ready()):
                self._start(*(self._next(ready) or ready[0]))
            self._collect()

    def _has_enough(self) -> bool:
        """True if the findings so far reach the limit of --maxfail."""
        found = sum(len(outcome.findings) for outcome in self.outcomes.values())
        return 0 < self.plan.maxfail <= found

    def _skip_waiting(self) -> None:
        """Leave the waiting pairs UNVERIFIED; those that run come to their end."""
        reason = Reason(Cause.ENOUGH_FINDINGS, f"not run: --maxfail {self.plan.maxfail}")
        skipped, self.waiting = self.waiting, []
        for operation, candidate in skipped:
            self._skip(operation, candidate, Skip("UNVERIFIED", reason))

    def interrupt(self) -> None:
        """Stop the running tasks and collect their outcomes; waiting pairs are UNVERIFIED.

        A task that has not ended after some seconds is killed; its last interim outcome stands.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.interrupted = True
        begun_never, self.waiting = self.waiting, []
        for task in self.running:
            task.process.terminate()
        deadline = time.monotonic() + _STOPPING_S
        while self.running:
            self._collect()
            if time.monotonic() > deadline:
                for task in self.running:
                    task.process.kill()
        reason = Reason(Cause.INTERRUPTED, "interrupted before it began")
        for operation, candidate in begun_never:
            self._skip(operation, candidate, Skip("UNVERIFIED", reason))

    def _skip(self, operation: Operation, candidate: Candidate, skip: Skip) -> None:
        self.outcomes[operation.name, candidate.name] = _skipped(operation, candidate, skip)

    def _ready(self) -> list[_Pair]:
        """Return the waiting pairs; a sequence waits for the functions that it calls."""
        unknown = {(operation.name, candidate.name) for operation, candidate in self.waiting}
        unknown |= {(task.operation.name, task.candidate.name) for task in self.running}
        return [
            (operation, candidate)
            for operation, candidate in self.waiting
            if candidate.target == OPTIMIZED
            or not any((name, candidate.name) in unknown for name in _called_by(operation))
        ]

    def _failed(self, operation: Operation, candidate: Candidate) -> list[str]:
        """Return the functions of the candidate that a sequence calls, and that have failed."""
        outcomes = [(n, self.outcomes.get((n, candidate.name))) for n in _called_by(operation)]
        return [name for name, outcome in outcomes if outcome and outcome.findings]

    def _next(self, pairs: list[_Pair], task: _Task | None = None) -> _Pair | None:
        """Return the first pair whose package no task except `task` has imported, None without."""
        # Importing a package takes seconds: one process runs all operations that need it. On a
        # GPU each of them takes minutes.
        imported = {name for other in self.running if other is not task for name in other.packages}
        return next(
            (
                (operation, candidate)
                for operation, candidate in pairs
                if candidate.device != "cpu" or operation.built_in.package not in imported
            ),
            None,
        )

    def _start(self, operation: Operation, candidate: Candidate) -> None:
        """Start a process that examines the operation, then those whose indices it receives."""
        plan, folder = self.plan, self.folder
        ours, theirs = multiprocessing.Pipe()
        number = plan.candidates.index(candidate)

        parent = os.getpid()

        first = self._order(operation, candidate)

        def drive() -> None:
            enter_process(Process.TASK)
            interrupt.listen(parent)
            die_with_parent(parent, signal.SIGKILL)  # it may be inside a call for long
            adopt_orphans()
            ours.close()
            try:
                _examine_all(plan, candidate, first, folder / f"ledger-{number:03}", theirs)
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
        self.running.append(_Task(operation, candidate, process, ours))
        self._assign(self.running[-1], operation)

    def _order(self, operation: Operation, candidate: Candidate) -> _Order:
        index = self.plan.operations.index(operation)
        return _Order(index, tuple(self._failed(operation, candidate)))

    def _assign(self, task: _Task, operation: Operation) -> None:
        """Record that the task examines the operation."""
        task.operation, task.interim = operation, None
        self.waiting.remove((operation, task.candidate))
        if operation.built_in.package:
            task.packages.add(operation.built_in.package)
        self.callbacks.started(operation.name, task.candidate.name)

    def _collect(self) -> None:
        """Wait briefly for messages of the running tasks; record the outcomes that arrive."""
        connections = [task.connection for task in self.running]
        ended = [task.process.sentinel for task in self.running]
        ready = multiprocessing.connection.wait([*connections, *ended], timeout=0.2)
        for task in [
            task
            for task in self.running
            if task.connection in ready or task.process.sentinel in ready
        ]:
            outcome = self._receive(task)
            if outcome is not None:
                self.outcomes[task.operation.name, task.candidate.name] = outcome
                if self._has_enough():
                    self._skip_waiting()
                self.callbacks.ended(outcome)
                self._continue(task)
        self.callbacks.tick()

    def _receive(self, task: _Task) -> Outcome | None:
        """Read one message of a task; return its outcome, None for a message of progress."""
        try:
            if not task.connection.poll():  # it was killed, and others hold its pipe
                raise EOFError
            data = task.connection.recv_bytes()
            if data == _OUTCOME:
                return msgspec.msgpack.decode(task.connection.recv_bytes(), type=Outcome)
            if data == _FAULT:
                return self._died(task, escape_lines(task.connection.recv_bytes().decode()))
        except (EOFError, OSError):
            return self._died(task, "")
        known = task.interim is not None and task.interim.findings
        task.interim = msgspec.msgpack.decode(data, type=Outcome)
        if task.interim.findings and not known:
            self.callbacks.failing(task.interim)
        cases = task.interim.result.cases
        self.callbacks.progressed(task.operation.name, task.candidate.name, cases)
        return None

    def _died(self, task: _Task, fault: str) -> Outcome:
        """Return what a task has that ended early; `fault` is its error or traceback, or ""."""
        task.died = True
        if not fault:
            task.process.kill()
        task.process.join()
        cause, text = Cause.TASK_DIED, f"its process ended with status {task.process.exitcode}"
        if self.interrupted and not fault:
            cause, text = Cause.INTERRUPTED, BEFORE_FIRST_CASE
            if task.interim is not None:
                text = task.interim.result.reason
        if fault:
            text = f"the harness failed: {fault.splitlines()[-1]}"
            print(fault, file=sys.stderr)
        if task.interim is None:
            skip = Skip("UNVERIFIED", Reason(cause, text, fault))
            return _skipped(task.operation, task.candidate, skip)
        result = msgspec.structs.replace(task.interim.result, reason=text, cause=cause, log=fault)
        return msgspec.structs.replace(task.interim, result=result)

    def _continue(self, task: _Task) -> None:
        """Send the next operation to a task that has ended one, or stop its process."""
        keeps = imports_once(task.candidate) and not task.died
        pairs = [pair for pair in self._ready() if pair[1] is task.candidate] if keeps else []
        following = self._next(pairs, task)
        if following is not None:
            self._assign(task, following[0])
            _send(task, msgspec.msgpack.encode(self._order(*following)))
            return
        self.running.remove(task)
        _send(task, b"")
        task.process.join()
        task.connection.close()


def _cost(operation: Operation, candidate: Candidate) -> tuple[bool, ...]:
    """Return what makes a task long, the longest first: kernels in the interpreter; on a GPU
    cases of real size, for the reference too, and kernels to compile."""
    on_device, built_in = candidate.device != "cpu", operation.built_in
    return (
        candidate.lane == "interpreter",
        bool(built_in.package),
        on_device and any(True for _ in operation.inputs.large()),
        on_device and built_in.kernels,
    )


def _examine_all(
    plan: Plan, candidate: Candidate, order: _Order, ledger: Path, parent: Connection
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
        order = msgspec.msgpack.decode(following, type=_Order)
    by.launcher.stop()


def run(plan: Plan, folder: Path, callbacks: ProgressCallbacks) -> tuple[list[Outcome], bool]:
    """Examine every pair; return the outcomes in order, and True if the run was interrupted.

    Ledgers are written to `folder`. Ctrl-C ends the running tasks: their outcomes hold what
    they found so far, and tasks that had not begun are UNVERIFIED. Ctrl-C and SIGTERM do not
    end the process afterwards either, so that the caller can write the report.
    """
    warm_up(plan.candidates)
    gc.freeze()  # collections in forked processes then skip the objects imported here
    session = _Session(plan, folder, callbacks)
    session.schedule()
    order = [(o.name, c.name) for c in plan.candidates for o in plan.operations]
    interrupted = False
    interrupt.watch()
    ours = children_of(os.getpid())
    adopt_orphans()
    try:
        session.work()
    except KeyboardInterrupt:
        interrupted = True
        session.interrupt()
    outcomes = [session.outcomes[pair] for pair in order]
    if not interrupted:
        with suppress(KeyboardInterrupt):  # then they are not linked
            outcomes = link(outcomes, plan)
    adopt_orphans(adopt=False)
    end_children(0.0, spared=ours)  # orphans of a task that was killed
    gc.unfreeze()
    return outcomes, interrupted


def _skipped(operation: Operation, candidate: Candidate, skip: Skip) -> Outcome:
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


def _called_by(operation: Operation) -> list[str]:
    """Return the names of the functions and classes that a sequence calls, none for others."""
    return [name for name in operation.call.names(operation.name) if name != operation.name]


def _send(task: _Task, order: bytes) -> None:
    """Send the next order; empty bytes stop the task."""
    with suppress(OSError):  # the next `_receive` reports a task that died
        task.connection.send_bytes(order)
