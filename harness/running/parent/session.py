"""Run the tasks of all operations and candidates, a few at a time, each in its own process."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Reason
from attnproof.harness.running import interrupt
from attnproof.harness.running.loading import imports_once
from attnproof.harness.running.parent.plan import Plan, Skip, find_skip
from attnproof.harness.running.parent.root_causes import link
from attnproof.harness.running.parent.task_process import Order, TaskProcess, skipped
from attnproof.harness.running.processes.linux import adopt_orphans
from attnproof.harness.running.processes.tree import children_of, end_children
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.running.worker.worker import warm_up

_STOPPING_S = 4.0
"""Seconds that running tasks may take to end after an interrupt."""
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


@dataclass
class _Session:
    """Waiting pairs and running tasks of a run, and the outcomes of the other pairs."""

    plan: Plan
    folder: Path
    callbacks: ProgressCallbacks
    waiting: list[_Pair] = field(default_factory=list)
    running: list[TaskProcess] = field(default_factory=list)
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    """Outcomes by names of operation and candidate."""
    interrupted: bool = False

    def schedule(self) -> None:
        """Record an outcome for each pair that is skipped, and queue the other pairs."""
        for chosen in self.plan.candidates:
            for operation in self.plan.operations:
                candidate = chosen.judging(operation.name)
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
        findings = sum(len(outcome.findings) for outcome in self.outcomes.values())
        return 0 < self.plan.maxfail <= findings

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
        self.outcomes[operation.name, candidate.name] = skipped(operation, candidate, skip)

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

    def _next(self, pairs: list[_Pair], task: TaskProcess | None = None) -> _Pair | None:
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
        order = self._order(operation, candidate)
        task = TaskProcess.start(self.plan, self.folder, operation, candidate, order)
        self.running.append(task)
        self._assign(task, operation)

    def _order(self, operation: Operation, candidate: Candidate) -> Order:
        index = self.plan.operations.index(operation)
        return Order(index, tuple(self._failed(operation, candidate)))

    def _assign(self, task: TaskProcess, operation: Operation) -> None:
        """Record that the task examines the operation."""
        task.operation, task.interim = operation, None
        self.waiting.remove((operation, task.candidate))
        if operation.built_in.package:
            task.packages.add(operation.built_in.package)
        self.callbacks.started(operation.name, task.candidate.name)

    def _collect(self) -> None:
        """Wait briefly for messages of the running tasks; record the outcomes that arrive."""
        waitables = [each for task in self.running for each in task.waitables]
        ready = multiprocessing.connection.wait(waitables, timeout=0.2)
        for task in [task for task in self.running if not {*task.waitables}.isdisjoint(ready)]:
            outcome = self._receive(task)
            if outcome is not None:
                self.outcomes[task.operation.name, task.candidate.name] = outcome
                if self._has_enough():
                    self._skip_waiting()
                self.callbacks.ended(outcome)
                self._continue(task)
        self.callbacks.tick()

    def _receive(self, task: TaskProcess) -> Outcome | None:
        """Read one message of a task; return its outcome, None for a message of progress."""
        had_findings = task.interim is not None and task.interim.findings
        outcome = task.receive(interrupted=self.interrupted)
        if outcome is None and task.interim is not None:
            if task.interim.findings and not had_findings:
                self.callbacks.failing(task.interim)
            cases = task.interim.result.cases
            self.callbacks.progressed(task.operation.name, task.candidate.name, cases)
        return outcome

    def _continue(self, task: TaskProcess) -> None:
        """Send the next operation to a task that has ended one, or stop its process."""
        keeps = imports_once(task.candidate) and not task.died
        pairs = [pair for pair in self._ready() if pair[1] is task.candidate] if keeps else []
        following = self._next(pairs, task)
        if following is not None:
            self._assign(task, following[0])
            task.send(msgspec.msgpack.encode(self._order(*following)))
            return
        self.running.remove(task)
        task.stop()


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
    interrupt.watch()
    ours = children_of(os.getpid())
    adopt_orphans()
    try:
        session.work()
    except KeyboardInterrupt:
        session.interrupt()
    outcomes = [session.outcomes[pair] for pair in order]
    if not session.interrupted:
        with suppress(KeyboardInterrupt):  # then they are not linked
            outcomes = link(outcomes, plan)
    adopt_orphans(adopt=False)
    end_children(0.0, spared=ours)  # orphans of a task that was killed
    gc.unfreeze()
    return outcomes, session.interrupted


def _called_by(operation: Operation) -> list[str]:
    """Return the names of the functions and classes that a sequence calls, none for others."""
    return [name for name in operation.call.names(operation.name) if name != operation.name]
