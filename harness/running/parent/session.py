"""A run: the tasks of all operations and candidates, a few at a time, each in its own process."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.case import Batch, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import OperationResult
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import imports_once, preload
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.parent.environment import gpu_name
from attnproof.harness.running.task.fuzz import get_ready
from attnproof.harness.running.task.task import NO_SUCH_FUNCTION, Outcome, Settings, examine
from attnproof.harness.running.task.workers import CandidateUnloadableError, Worker
from attnproof.harness.running.worker.worker import warm_up

NO_GPU = "no CUDA device on this machine"
INTERPRETED_SHARE = 4
"""One in so many trace steps is run in Triton's interpreter."""
NOT_INSTALLED = "{} is not installed"
HOST_ONLY = "reads only CPU mirrors: there is no device path to verify"


Lacking = dict[str, dict[str, str]]
"""By candidate, the operations that it does not offer, and why."""


@dataclass(frozen=True)
class Plan:
    """What a run looks at."""

    operations: list[Operation]
    candidates: list[Candidate]
    settings: Settings
    steps: list[tuple[str, Batch]]
    """Batches of the traces and where each comes from."""
    corpus: list[Sourced]
    jobs: int
    lacking: Lacking = field(default_factory=dict)
    """What `probe` has found missing: nobody starts a process to find it again."""


@dataclass(frozen=True)
class Watcher:
    """Who wants to know how the run goes."""

    planned: Callable[[int], None]
    """Told how many tasks there will be."""
    started: Callable[[str, str], None]
    progressed: Callable[[str, str, int], None]
    ended: Callable[[OperationResult], None]
    tick: Callable[[], None]


_Pair = tuple[Operation, Candidate]


@dataclass
class _Task:
    operation: Operation
    candidate: Candidate
    process: multiprocessing.process.BaseProcess
    connection: Connection
    died: bool = False

    def next_of(self, waiting: list[_Pair]) -> _Pair | None:
        """What its process can go on with: an engine's next operation, as it has imported it."""
        if self.died or not imports_once(self.candidate):
            return None
        return next((pair for pair in waiting if pair[1] is self.candidate), None)


def probe(candidates: list[Candidate], operations: list[Operation], settings: Settings) -> Lacking:
    """What each candidate lacks; it must be importable and offer something (UsageError)."""
    by_name = {operation.name: operation for operation in operations}
    lacking: Lacking = {}
    for candidate in candidates:
        if candidate.lane == "cuda" and gpu_name() is None:
            continue
        try:
            worker = Worker(
                candidate, by_name, timeout_s=settings.timeout_s, memory_bytes=settings.memory_bytes
            )
        except CandidateUnloadableError as error:
            raise UsageError(str(error)) from None
        worker.stop()
        if not worker.offers:
            raise UsageError(
                f"candidate {candidate.name} offers none of the operations asked for: "
                f"define functions such as {operations[0].name}"
            )
        lacking[candidate.name] = {
            name: worker.withheld.get(name, NO_SUCH_FUNCTION)
            for name in by_name
            if name not in worker.offers
        }
    return lacking


def run(plan: Plan, folder: Path, watcher: Watcher) -> tuple[list[Outcome], bool]:
    """Examine every pair; returns the outcomes in order and whether the run was interrupted.

    Ledgers are written to `folder`. Ctrl-C ends the tasks that run; what they found
    so far is among the outcomes, tasks that had not begun are UNVERIFIED.
    """
    warm_up()
    get_ready()
    outcomes: dict[tuple[str, str], Outcome] = {}
    waiting: list[_Pair] = []
    for candidate in plan.candidates:
        for operation in plan.operations:
            reason, verdict = not_run(operation, candidate)
            lacking = plan.lacking.get(candidate.name, {})
            if not verdict and operation.name in lacking:
                reason, verdict = lacking[operation.name], "NOT OFFERED"
            if verdict:
                outcomes[operation.name, candidate.name] = _blank(
                    operation, candidate, verdict, reason
                )
            else:
                waiting.append((operation, candidate))
    # The interpreter's kernels take longest: begun first, they do not end alone.
    waiting.sort(key=lambda pair: pair[1].lane != "interpreter")
    watcher.planned(len(waiting))
    running: list[_Task] = []
    interrupted = False
    interrupt.watch()
    try:
        while waiting or running:
            interrupt.check()
            while waiting and len(running) < plan.jobs:
                running.append(_start(*waiting.pop(0), plan, folder))
                watcher.started(running[-1].operation.name, running[-1].candidate.name)
            _collect(running, waiting, plan, outcomes, watcher)
    except KeyboardInterrupt:
        interrupted = True
        _interrupt(running, plan, outcomes, watcher)
        for operation, candidate in waiting:
            outcomes[operation.name, candidate.name] = _blank(
                operation, candidate, "UNVERIFIED", "interrupted before it began"
            )
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    order = [(o.name, c.name) for c in plan.candidates for o in plan.operations]
    return [outcomes[pair] for pair in order], interrupted


def not_run(operation: Operation, candidate: Candidate) -> tuple[str, str]:
    """Why this pair cannot be examined here, and the verdict that this is; "" if it can."""
    if candidate.lane == "cuda" and gpu_name() is None:
        return NO_GPU, "UNVERIFIED"
    if candidate.kernels_only and not operation.built_in.kernels:
        return HOST_ONLY, "NOT OFFERED"
    package = operation.built_in.package if candidate.target == OPTIMIZED else ""
    if package and find_spec(package) is None:
        return NOT_INSTALLED.format(package), "UNVERIFIED"
    return "", ""


def _blank(operation: Operation, candidate: Candidate, verdict: str, reason: str) -> Outcome:
    result = OperationResult(
        name=operation.name,
        section=operation.section,
        candidate=candidate.name,
        device=candidate.lane,
        verdict=verdict,  # type: ignore[arg-type]
        reason=reason,
    )
    return Outcome(result, [])


def _start(operation: Operation, candidate: Candidate, plan: Plan, folder: Path) -> _Task:
    """A process that examines the operation, then those that it is sent the places of."""
    ours, theirs = multiprocessing.Pipe()
    number = plan.candidates.index(candidate)

    def drive() -> None:
        interrupt.listen()
        ours.close()
        preload(candidate)
        place = b"%d" % plan.operations.index(operation)
        while place:
            outcome = examine(
                plan.operations[int(place)],
                candidate,
                plan.settings,
                steps_on(candidate, plan.steps),
                plan.corpus,
                folder / f"ledger-{number:03}-{int(place):03}.jsonl",
                lambda cases: theirs.send_bytes(b"%d" % cases),
            )
            theirs.send_bytes(b"outcome")
            theirs.send_bytes(msgspec.msgpack.encode(outcome))
            place = theirs.recv_bytes()
        os._exit(0)  # threads that an engine has begun would be waited for

    process = multiprocessing.get_context("fork").Process(target=drive)
    process.start()
    theirs.close()
    return _Task(operation, candidate, process, ours)


def steps_on(candidate: Candidate, steps: list[tuple[str, Batch]]) -> list[tuple[str, Batch]]:
    """The trace steps that a candidate gets: in the interpreter every fourth of them.

    A kernel takes tens of milliseconds there, which 200 large steps would make minutes.
    """
    return steps[::INTERPRETED_SHARE] if candidate.lane == "interpreter" else steps


def _collect(
    running: list[_Task],
    waiting: list[_Pair],
    plan: Plan,
    outcomes: dict[tuple[str, str], Outcome],
    watcher: Watcher,
) -> None:
    """Wait a little for news of the running tasks; ended ones move to the outcomes."""
    ready = multiprocessing.connection.wait([task.connection for task in running], timeout=0.2)
    for task in [task for task in running if task.connection in ready]:
        outcome = _news(task, watcher)
        if outcome is not None:
            outcomes[task.operation.name, task.candidate.name] = outcome
            watcher.ended(outcome.result)
            following = task.next_of(waiting)
            if following is None:
                running.remove(task)
                _end(task)
            else:
                waiting.remove(following)
                task.operation = following[0]
                _tell(task, b"%d" % plan.operations.index(task.operation))
                watcher.started(task.operation.name, task.candidate.name)
    watcher.tick()


def _end(task: _Task) -> None:
    _tell(task, b"")
    task.process.join()
    task.connection.close()


def _tell(task: _Task, place: bytes) -> None:
    """Send the place of an operation, or nothing to end it; of a dead one `_news` will tell."""
    with suppress(OSError):
        task.connection.send_bytes(place)


def _news(task: _Task, watcher: Watcher) -> Outcome | None:
    try:
        data = task.connection.recv_bytes()
        if data == b"outcome":
            return msgspec.msgpack.decode(task.connection.recv_bytes(), type=Outcome)
    except EOFError:
        task.died = True
        task.process.join()
        reason = f"its process ended with status {task.process.exitcode}"
        return _blank(task.operation, task.candidate, "UNVERIFIED", reason)
    watcher.progressed(task.operation.name, task.candidate.name, int(data))
    return None


def _interrupt(
    running: list[_Task],
    plan: Plan,
    outcomes: dict[tuple[str, str], Outcome],
    watcher: Watcher,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for task in running:
        task.process.terminate()
    while running:
        _collect(running, [], plan, outcomes, watcher)
