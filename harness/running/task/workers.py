"""The judging side of a worker: send cases, judge the reports, replace a worker that has died.

The reference and the oracles run in this process, which never imports the candidate.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from attnproof import reference
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Reason
from attnproof.harness.model.verdict import ORACLES, PROCESS, Explanation, Failure, Verdict
from attnproof.harness.oracles import call_once, judge
from attnproof.harness.running.candidates import offered_by, preload, preload_package
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.exchange.memory import SharedMemory
from attnproof.harness.running.exchange.observed import (
    ForgedReportError,
    Observed,
    ObservedTrial,
)
from attnproof.harness.running.processes.child import Child, EndKind, Limits
from attnproof.harness.running.processes.launcher import Launcher
from attnproof.harness.running.task.explanation import explain
from attnproof.harness.running.worker.worker import (
    CALL_ONCE,
    IMPORT,
    JUDGE,
    JUDGE_UNREPEATED,
    Invalid,
    Lost,
    Order,
    Ready,
    Reply,
    Unloadable,
    serve,
)

_IMPORT_S = 120.0
_FIRST_CALL_S = 90.0
"""Timeout of a first call that may compile, in seconds."""
_MOST_CASES = 2000
_LOG_BYTES = 4000
"""Bytes of standard error that a failure shows."""
_MOST_OUTPUT = 64 << 20
"""Bytes that one case may write to the standard streams."""
LATE = "does not answer"
"""Kind of death of a hang."""
_decoder = msgspec.msgpack.Decoder(Reply)
_NO_CHECKS = tuple(int(name == PROCESS) for name in ORACLES)
_KINDS_OF_DEATH = {
    EndKind.CRASHED: "crashes",
    EndKind.EXITED: "ends the process",
    EndKind.CLOSED_PIPE: "closes the channel to the harness and goes on",
    EndKind.LATE: LATE,
    EndKind.FORGED: "writes to the channel of the harness",
    EndKind.MEMORY: "uses more memory than --memory allows",
    EndKind.OUTPUT: "floods its standard streams",
}
PRINTS = Failure(
    oracle=PROCESS,
    field="",
    diagnosis="writes to standard output",
    message="the candidate wrote to standard output",
)


FORKS = Failure(
    oracle=PROCESS,
    field="forks",
    diagnosis="forks a process that returns from the call",
    message="the candidate forked a process that returned from the call as well",
    expected="one return from each call",
    got="two",
)


class CandidateUnloadableError(InfrastructureError):
    """The candidate's import failed or did not end in time."""


class InvalidCaseError(InfrastructureError):
    """The harness could not judge a case."""


class _Death(NamedTuple):
    """Way in which a candidate ended its worker."""

    kind: str
    """Verb phrase such as "crashes"; deaths of one kind are one root cause."""
    detail: str = ""

    def __str__(self) -> str:
        within = "within" if self.kind == LATE else "with"
        return f"{self.kind} {within} {self.detail}" if self.detail else self.kind


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

    return Launching(Launcher(partial(serve, candidate, operations, memory), prepare), memory)


def _nothing() -> None:
    """Do nothing."""


class Worker:
    """A forked process with one candidate; restarted when the candidate has killed it."""

    def __init__(
        self,
        candidate: Candidate,
        operations: dict[str, Operation],
        *,
        timeout_s: float,
        memory_bytes: int,
        by: Launching | None = None,
    ) -> None:
        """Start the process, by a launcher of its own if there is none."""
        self.candidate = candidate
        self.timeout_s = timeout_s
        self.deaths = 0
        self.offers: dict[str, tuple[str, ...]] = {}
        self.withheld: dict[str, str] = {}
        self.cases: deque[Case] = deque(maxlen=_MOST_CASES)
        """Last cases that the process has been sent, in order."""
        self.survivors: list[str] = []
        """Command lines of processes that were left behind by the processes so far."""
        self.has_children = False
        """True if the process had children after the last case."""
        self.slowest_s = 0.0
        """Longest time of a reply so far, first calls apart."""
        self._operations = operations
        self._order = msgspec.msgpack.encode(Order(list(operations), memory_bytes))
        self._memory_bytes = memory_bytes
        self._called = False
        """True after a reply to good input or a death: the next call is no first call."""
        self._waited_s = timeout_s
        """Timeout of the last case."""
        self._baseline = 0
        """Bytes that the process holds when it has imported the candidate."""
        self._unloadable = ""
        """Reason why the last start failed."""
        self._deadline: float | None = None
        """Time at which no more case is explained."""
        self._first_call_s = timeout_s
        """Timeout of a first call, in seconds."""
        self._owned = None if by else launching(candidate, operations)
        self._launcher, self._memory = by or self._owned  # type: ignore[misc]
        self._child: Child | None = None
        self._streams = (os.memfd_create("candidate-stdout"), os.memfd_create("candidate-stderr"))
        try:
            if self._owned:
                self._launcher.prepare(b"")
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Fork a fresh process and wait until it has imported the candidate."""
        self.cases.clear()
        for stream in self._streams:
            os.ftruncate(stream, 0)
            os.lseek(stream, 0, os.SEEK_SET)
        try:
            self._child = self._launcher.start(self._order, *self._streams)
        except OSError as error:
            raise InfrastructureError(f"a process cannot be started: {error.strerror}") from None
        known = self._baseline or self._memory_bytes
        self._child.limits = Limits(self._memory_bytes + known, _MOST_OUTPUT)
        import_s = _IMPORT_S
        if self._deadline is not None:
            import_s = max(0.0, self._deadline - time.monotonic())
        reply = self._asked(IMPORT, import_s)
        if isinstance(reply, Ready):
            self.offers, self.withheld = reply.offers, reply.withheld
            if reply.compiles:
                self._first_call_s = max(self._first_call_s, _FIRST_CALL_S)
            # Only once: to read it takes longer than to fork the process.
            self._baseline = self._baseline or self._child.memory()
            self._child.limits = Limits(self._memory_bytes + self._baseline, _MOST_OUTPUT)
            return
        reason = reply.reason if isinstance(reply, Unloadable) else str(self._ended(import_s))
        self.end_process()
        name = self.candidate.name
        self._unloadable = f"candidate {name} cannot be imported: {reason}"
        raise CandidateUnloadableError(self._unloadable)

    def why_not_offered(self, operation: str) -> Reason | None:
        """Return why the candidate does not offer the operation, None if it does."""
        if operation in self.offers:
            return None
        if operation in self.withheld:
            return Reason(Cause.WITHHELD, self.withheld[operation])
        return Reason(Cause.NO_FUNCTION, "the candidate has no such function")

    def judge(self, case: Case, *, digested: bool = False, repeated: bool = True) -> Verdict:
        """Return the verdict on a case; a crash or a hang is a verdict too (InvalidCaseError).

        `digested` adds a hash of the outputs. Without `repeated` the oracle determinism is left
        out.
        """
        return self._verdict(
            JUDGE if repeated else JUDGE_UNREPEATED,
            case,
            lambda trial: judge(trial, digested=digested, repeated=repeated),
        )

    def call_once(self, case: Case) -> Verdict:
        """Return the digest of one call's outputs, or the failure that it ended with.

        Raises InvalidCaseError.
        """
        return self._verdict(CALL_ONCE, case, call_once)

    def explain(self, case: Case) -> Explanation:
        """Return all outputs of the case, none if the candidate dies."""
        script = self._operations[case.operation].call.script(case)
        steps = [(line.label, line.code) for line in script.lines] if script else []
        if self._child is None or (self._deadline and time.monotonic() > self._deadline):
            return Explanation([], "", steps)
        trial, log = self._trial(case), ""
        reply = self._asked_about(CALL_ONCE, case)
        if isinstance(reply, Observed):
            try:
                trial.add(reply, self._memory)
                own = self.offers[case.operation]
                return explain(trial, Parts({}, own), self.candidate.target)
            except Exception as error:  # the verdict stands without its explanation
                log = f"the outputs cannot be shown: {type(error).__name__}: {error}"
        elif not isinstance(reply, Invalid):
            log = self._replaced(reply).log
        return Explanation([], log, steps)

    @contextmanager
    def patient(self, times: float) -> Iterator[None]:
        """Multiply the timeout of each reply inside the block."""
        usual, self.timeout_s = self.timeout_s, self.timeout_s * times
        try:
            yield
        finally:
            self.timeout_s = usual

    def restart(self, first_call_s: float = 0.0) -> None:
        """Replace the process by a fresh one, whose first call may take at least that long."""
        self._first_call_s = max(self._first_call_s, first_call_s)
        self._called = False
        self.restart_warm()

    def restart_warm(self) -> None:
        """Replace the process by a fresh one, whose first call gets no longer timeout."""
        self.end_process()
        self.start()

    def hurry(self, seconds: float) -> None:
        """Let all explanations together take at most this long, and start no other process."""
        self._deadline = time.monotonic() + seconds

    def end_process(self) -> None:
        """Kill the process and those that it started."""
        if self._child is not None:
            self._child.kill()
            self.survivors += self._child.survivors
            self._child = None

    def stop(self) -> None:
        """Kill the process; close everything that the worker has opened."""
        self.end_process()
        for stream in self._streams:
            os.close(stream)
        if self._owned:
            self._launcher.stop()

    def _verdict(
        self, kind: bytes, case: Case, judged: Callable[[ObservedTrial], Verdict]
    ) -> Verdict:
        trial = self._trial(case)
        meanwhile = trial.compute_expected if kind != CALL_ONCE else None
        reply = self._asked_about(kind, case, meanwhile)
        if isinstance(reply, Invalid):
            raise InvalidCaseError(f"case {case.id} of {case.operation}: {reply.reason}")
        if not isinstance(reply, Observed):
            return Verdict((self._replaced(reply),), _NO_CHECKS)
        try:
            trial.add(reply, self._memory)
            verdict = judged(trial)
        except ForgedReportError:
            assert self._child is not None
            self._child.forged()
            return Verdict((self._replaced(None),), _NO_CHECKS)
        except Exception as error:  # an error of the harness
            text = f"{type(error).__name__}: {error}"
            raise InvalidCaseError(f"case {case.id} of {case.operation}: {text}") from error
        if reply.forked:
            verdict = msgspec.structs.replace(verdict, failures=(*verdict.failures, FORKS))
        if reply.printed:
            failure = msgspec.structs.replace(PRINTS, got=reply.printed[:200], log=reply.printed)
            verdict = msgspec.structs.replace(verdict, failures=(*verdict.failures, failure))
        return verdict

    def _trial(self, case: Case) -> ObservedTrial:
        operation = self._operations[case.operation]
        return ObservedTrial(
            operation,
            case,
            offered_by(reference, operation),
            self.candidate.device,
            of_reference=self.candidate.target == reference.__name__,
        )

    def _asked_about(
        self, kind: bytes, case: Case, meanwhile: Callable[[], None] | None = None
    ) -> Reply | None:
        timeout_s = self.timeout_s
        if not self._called:
            timeout_s = max(timeout_s, self._first_call_s)
        if self._deadline is not None:
            timeout_s = min(timeout_s, max(0.0, self._deadline - time.monotonic()))
        self.cases.append(case)
        begun = time.monotonic()
        self._waited_s = timeout_s
        reply = self._asked(kind + encode(case), timeout_s, meanwhile or _nothing)
        if isinstance(reply, Observed):
            if self._called:
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            self._called |= not case.fault
            self.has_children = reply.has_children
        return reply

    def _asked(
        self, message: bytes, timeout_s: float, meanwhile: Callable[[], None] = _nothing
    ) -> Reply | None:
        """Return the reply; None if the process did not send one (KeyboardInterrupt).

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

    def _replaced(self, reply: Reply | None) -> Failure:
        """Start a fresh process; return the death of the old one as a failure."""
        if isinstance(reply, Lost):
            self.end_process()
            death, log = _Death("loses the device", reply.reason), reply.log
        else:
            death = self._ended(self._waited_s)
            log = os.pread(self._streams[1], _LOG_BYTES, 0).decode(errors="replace")
        self.deaths += 1
        self._called = True
        self.end_process()
        if self._deadline is None:
            self.start()
        diagnosis = str(death)
        return Failure(
            oracle=PROCESS,
            field=death.kind,
            diagnosis=diagnosis,
            message=f"the candidate {diagnosis}",
            expected="a result",
            got=diagnosis,
            log=log,
        )

    def _ended(self, waited_s: float) -> _Death:
        """Kill the process that did not reply, and return the way in which it ended."""
        assert self._child is not None
        kind, detail = self._child.end()
        if kind is EndKind.LATE:
            detail = f"{waited_s:g} s"
        return _Death(_KINDS_OF_DEATH[kind], detail)
