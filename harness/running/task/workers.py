"""The judging side of a worker: send cases, judge the reports, replace a worker that has died.

The reference and the oracles run in this process, which never imports the candidate.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from attnproof import reference
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import Cause, Reason
from attnproof.harness.model.verdict import (
    ENGINE,
    ORACLES,
    PROCESS,
    Explanation,
    Failure,
    Kind,
    Verdict,
)
from attnproof.harness.oracles import call_once, judge, later_calls
from attnproof.harness.oracles.later_calls import copied
from attnproof.harness.running.candidates import offered_by
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.exchange.observed import ForgedReportError, ObservedTrial
from attnproof.harness.running.exchange.reports import Observed
from attnproof.harness.running.interface_choice import Fitting, with_reported_interface
from attnproof.harness.running.task.candidate_process import (
    CandidateProcess,
    Launching,
    launching,
)
from attnproof.harness.running.task.explanation import explain
from attnproof.harness.running.task.process_failures import BREAKS, FORKS, PRINTS
from attnproof.harness.running.worker.worker import (
    CALL_AFTER,
    CALL_IN_PLACE,
    CALL_ONCE,
    JUDGE,
    JUDGE_FIRST,
    JUDGE_UNPOISONED,
    JUDGE_UNREPEATED,
    Invalid,
    Reply,
)

_IMPORT_S = 120.0
_FIRST_CALL_S = 90.0
"""Timeout of a first call that may compile, in seconds."""
_TIMES_REFERENCE, _TIMES_INTERPRETED = 50, 20_000
"""Least timeout of a case: that many times the reference's CPU time for one call, of which the
candidate makes about eight. Triton's interpreter takes milliseconds where a loop takes
microseconds."""
_MOST_TIMEOUTS = 15
"""Longest such timeout, in timeouts of a case."""
_MOST_CASES = 2000
_KINDS = {
    (True, True): JUDGE,
    (False, True): JUDGE_UNREPEATED,
    (True, False): JUDGE_UNPOISONED,
    (False, False): JUDGE_FIRST,
}
"""Kinds of messages by `repeated` and `poisoned`."""
_NO_CHECKS = tuple(int(name == PROCESS) for name in ORACLES)


class Following(NamedTuple):
    """Arguments of the next `Worker.judge`."""

    case: Case
    repeated: bool
    poisoned: bool


class InvalidCaseError(InfrastructureError):
    """The harness could not judge a case."""

    def __init__(self, case: Case, reason: str, log: str) -> None:
        """`log` is the traceback of the fault, which may be one of the reference."""
        super().__init__(f"case {case.id} of {case.operation}: {reason}")
        self.log = log
        own = inspect.unwrap(getattr(reference, case.operation, type(self)))
        is_of_a_user = not own.__module__.startswith(f"{reference.__name__.partition('.')[0]}.")
        by_reference = is_of_a_user and f'"{inspect.getsourcefile(own)}"' in log
        self.cause = Cause.REFERENCE_FAILED if by_reference else Cause.INVALID_CASE
        self.failed = "the reference" if by_reference else "the harness"


def real_kinds(
    operation: Operation, case: Case, failures: tuple[Failure, ...]
) -> tuple[Failure, ...]:
    """Return the failures of a case with the classes that they have on it.

    What fails a candidate of an engine is a contract's on a case that no engine makes.
    """
    if not operation.why_unreal(case):
        return failures
    return tuple(
        msgspec.structs.replace(failure, other_kind=Kind.CONTRACT)
        if failure.kind in ENGINE
        else failure
        for failure in failures
    )


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
        exchanged: tuple[str, ...] = (),
    ) -> None:
        """Start the process, by a launcher of its own if there is none.

        `exchanged` are names of functions to exchange for the reference's.
        """
        self.candidate = candidate
        self.timeout_s = timeout_s
        self._usual_s = timeout_s
        """Timeout of a case in seconds, before a shorter one is learnt."""
        self.deaths = 0
        self.offers: dict[str, tuple[str, ...]] = {}
        self.withheld: dict[str, str] = {}
        self.misspelt: dict[str, str] = {}
        """Names of the candidate's functions by the absent operations that they resemble."""
        self.places: dict[str, str] = {}
        """Source of the function or class of each operation, such as "backend.py:12"."""
        self.cases: deque[Case] = deque(maxlen=_MOST_CASES)
        """Last cases that the process has been sent, in order."""
        self.ended_cases = self.cases
        """Those of the process before."""
        self.has_children = False
        """True if the process had children after the last case."""
        self.slowest_s = 0.0
        """Longest time of a reply so far, first calls apart."""
        self.following: Following | None = None
        """Arguments of the next `judge`, whose case is sent early; None if they are not known."""
        self._ahead = b""
        """Message that was sent early and has no reply yet, b"" without."""
        self._operations = operations
        self._memory_bytes = memory_bytes
        self._fitting: Fitting | None = None
        self._called = False
        """True after a reply to good input or a death: the next call is no first call."""
        self._deadline: float | None = None
        """Time at which no more case is explained."""
        self._first_call_s = timeout_s
        """Timeout of a first call, in seconds."""
        self._owns_launcher = by is None
        self._launching = by or launching(candidate, operations)
        self._process = CandidateProcess(
            candidate, list(operations), memory_bytes, self._launching.launcher, exchanged
        )
        try:
            if self._owns_launcher:
                self._launching.launcher.prepare(b"")
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def survivors(self) -> list[str]:
        """Command lines of processes that were left behind by the processes so far."""
        return self._process.survivors

    @property
    def is_hurried(self) -> bool:
        """True if the time for explanations is limited."""
        return self._deadline is not None

    def start(self) -> None:
        """Fork a fresh process and wait until it has imported the candidate."""
        self.ended_cases, self.cases = self.cases, deque(maxlen=_MOST_CASES)
        self._ahead = b""
        import_s = _IMPORT_S
        if self._deadline is not None:
            import_s = max(0.0, self._deadline - time.monotonic())
        ready = self._process.start(import_s)
        self.offers, self.withheld, self.places = ready.offers, ready.withheld, ready.places
        self.misspelt = ready.misspelt
        if self._fitting is None:
            self.candidate = with_reported_interface(
                self.candidate, ready.interface, ready.interface_reason
            )
            self._fitting = Fitting(self.candidate, ready.forms, self._outputs_of_trial)
        if ready.compiles:
            self._first_call_s = max(self._first_call_s, _FIRST_CALL_S)

    def why_not_offered(self, operation: str) -> Reason | None:
        """Return why the candidate does not offer the operation, None if it does."""
        if operation in self.offers:
            return None
        if operation in self.withheld:
            return Reason(Cause.WITHHELD, self.withheld[operation])
        own = self.misspelt.get(operation)
        hint = f"; {escape_line(own)}: did you mean {operation}?" if own else ""
        return Reason(Cause.NO_FUNCTION, f"the candidate has no such function{hint}")

    def fitted(self, case: Case) -> Case:
        """Return the case without what the candidate's interface cannot say."""
        assert self._fitting is not None
        if case.before:
            before = tuple(map(self._fitting, case.before))
            case = msgspec.structs.replace(case, before=before)
        return self._fitting(case)

    def beside(self, interface: str) -> Worker:
        """Return a worker of the candidate in another interface; the caller must stop it."""
        candidate = msgspec.structs.replace(self.candidate, interface=interface, declared=True)
        return Worker(
            candidate,
            self._operations,
            timeout_s=self.timeout_s,
            memory_bytes=self._memory_bytes,
        )

    def _outputs_of_trial(self, case: Case) -> dict[Place, Any]:
        try:
            return self.outputs(case)
        except InvalidCaseError:
            return {}

    def why_unreal(self, case: Case) -> str:
        """Return the reason why no engine makes a case, "" if one does."""
        return self._operations[case.operation].why_unreal(case)

    def judge(
        self, case: Case, *, digested: bool = False, repeated: bool = True, poisoned: bool = True
    ) -> Verdict:
        """Return the verdict on a case; a crash or a hang is a verdict too (InvalidCaseError).

        `digested` adds a hash of the outputs. Without `repeated` the oracle determinism is left
        out, without `poisoned` the oracle padding.
        """
        verdict = self._verdict(
            _KINDS[repeated, poisoned],
            case,
            lambda trial: judge(trial, digested=digested, repeated=repeated),
        )
        if not verdict.failures:
            return verdict
        failures = real_kinds(self._operations[case.operation], case, verdict.failures)
        return msgspec.structs.replace(verdict, failures=failures)

    def call_once(self, case: Case) -> Verdict:
        """Return the digest of one call's outputs, or the failure that it ended with.

        Raises InvalidCaseError.
        """
        return self._verdict(CALL_ONCE, case, call_once)

    def outputs(self, case: Case) -> dict[Place, Any]:
        """Return a copy of the outputs of one call, none if there are none (InvalidCaseError)."""
        found: dict[Place, Any] = {}

        def keep(trial: ObservedTrial) -> Verdict:
            made = trial.first
            if made.error is None and not made.malformed:
                found.update((place, copied(value)) for place, value in made.outputs.items())
            return Verdict((), _NO_CHECKS)

        self._verdict(CALL_ONCE, case, keep)
        return found

    def call_after(self, case: Case, other: Case, *, in_place: bool = False) -> Verdict:
        """Call the candidate on the case and then on another; judge what the second call shows.

        With `in_place` the second call gets the tensors of the first one, filled anew.
        Its failures are those of `oracles.later_calls`, or a death. Raises InvalidCaseError.
        """
        self.cases.append(case)
        verdict = self._verdict(
            (CALL_IN_PLACE if in_place else CALL_AFTER) + encode(case) + b"\n",
            other,
            lambda trial: Verdict(
                tuple(later_calls.judge(trial, trial.overwritten, case.id)), _NO_CHECKS
            ),
        )
        operation = self._operations[case.operation]
        failures = real_kinds(operation, other, verdict.failures)
        failures = real_kinds(operation, case, failures)
        return msgspec.structs.replace(verdict, failures=failures)

    def explain(self, case: Case) -> Explanation:
        """Return all outputs of the case, none if the candidate dies."""
        script = self._operations[case.operation].call.script(case)
        steps = [(line.label, line.code) for line in script.lines] if script else []
        end = self._deadline  # then no other process is started, as calls before it need
        late = end is not None and (case.before or time.monotonic() > end)
        if late or not self._process.runs:
            return Explanation([], "", steps)
        trial, log = self._trial(case), ""
        reply = self._asked_about(CALL_ONCE, trial)
        if isinstance(reply, Observed):
            try:
                trial.add(reply, self._launching.memory)
                own = self.offers[case.operation]
                return explain(trial, Parts({}, own), self.candidate.target)
            except Exception as error:  # the verdict stands without its explanation
                log = f"the outputs cannot be shown: {type(error).__name__}: {error}"
        elif not isinstance(reply, Invalid):
            log = self._replaced(reply).log
        return Explanation([], log, steps)

    def calls_before(self, case: Case) -> list[Case]:
        """Return the cases that the last process called on the case was called on before it.

        All of the running process if it is not known.
        """
        for calls in map(list, (self.cases, self.ended_cases)):
            for index in range(len(calls) - 1, -1, -1):
                if calls[index].id == case.id:
                    return calls[:index]
        return list(self.cases)

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
        """Kill the process and those that it started, not in the middle of a call."""
        if not self.is_hurried:
            self._settle_ahead()
        self._process.end()

    def stop(self) -> None:
        """Kill the process; close everything that the worker has opened."""
        self._process.close()
        if self._owns_launcher:
            self._launching.launcher.stop()

    def _verdict(
        self, kind: bytes, case: Case, judged: Callable[[ObservedTrial], Verdict]
    ) -> Verdict:
        following, self.following = self.following, None
        trial = self._trial(case)
        trial.poisons = kind not in (JUDGE_UNPOISONED, JUDGE_FIRST)
        reply = self._asked_about(kind, trial)
        if isinstance(reply, Invalid):
            if not self._reference_can(kind, case):
                if not self._process.runs:
                    self.start()
                raise InvalidCaseError(case, reply.reason, reply.log)
            self._replace()
            failure = msgspec.structs.replace(BREAKS, got=reply.reason, log=reply.log)
            return Verdict((failure,), _NO_CHECKS)
        if not isinstance(reply, Observed):
            return Verdict((self._replaced(reply),), _NO_CHECKS)
        try:
            trial.add(reply, self._launching.memory)
            self._send_ahead(following)
            verdict = judged(trial)
        except ForgedReportError:
            self._process.forged()
            return Verdict((self._replaced(None),), _NO_CHECKS)
        except Exception as error:  # an error of the harness
            log = "".join(traceback.format_exception(error)[-12:])
            raise InvalidCaseError(case, f"{type(error).__name__}: {error}", log) from error
        if reply.forked:
            verdict = msgspec.structs.replace(verdict, failures=(*verdict.failures, FORKS))
        if reply.printed:
            failure = msgspec.structs.replace(PRINTS, got=reply.printed[:200], log=reply.printed)
            verdict = msgspec.structs.replace(verdict, failures=(*verdict.failures, failure))
        return verdict

    def _reference_can(self, kind: bytes, case: Case) -> bool:
        """True if the harness can make the same calls of the reference, in a process of its own.

        The candidate's process is ended.
        """
        if self.candidate.target == reference.__name__:
            return False
        self.end_process()  # the launcher would wait for it when it collects the other one
        try:
            worker = Worker(
                Candidate("reference", reference.__name__, self.candidate.lane),
                {case.operation: self._operations[case.operation]},
                timeout_s=self.timeout_s,
                memory_bytes=self._memory_bytes,
                # This process has used the device: what it forks cannot use it.
                by=self._launching,
            )
        except InfrastructureError:
            return False
        try:
            return isinstance(worker._asked_about(kind, worker._trial(case)), Observed)
        finally:
            worker.stop()

    def _trial(self, case: Case) -> ObservedTrial:
        operation = self._operations[case.operation]
        return ObservedTrial(
            operation,
            case,
            offered_by(reference, operation),
            self.candidate.device,
            of_reference=self.candidate.target == reference.__name__,
        )

    def _asked_about(self, kind: bytes, trial: ObservedTrial) -> Reply | None:
        case = trial.case
        if case.before:
            self._call_before(case)
        timeout_s = self.timeout_s
        if not self._called:
            timeout_s = max(timeout_s, self._first_call_s)
        if self._deadline is not None:
            timeout_s = min(timeout_s, max(0.0, self._deadline - time.monotonic()))

        def call_reference() -> float:
            reference_s = trial.compute_expected(poisoned=kind in (JUDGE, JUDGE_UNREPEATED))
            return self._least_timeout(reference_s) if self._deadline is None else 0.0

        message = kind + encode(case)
        if message != self._ahead:
            self._settle_ahead()
            self.cases.append(case)
        self._ahead = b""
        begun = time.monotonic()
        reply = self._process.ask(message, timeout_s, call_reference)
        if isinstance(reply, Observed):
            if self._called:
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            self._called |= not case.fault
            self.has_children = reply.has_children
        return reply

    def _send_ahead(self, following: Following | None) -> None:
        """Let the process run the next case while the report on this one is judged."""
        if following is None or following.case.before:
            return
        self._ahead = _KINDS[following.repeated, following.poisoned] + encode(following.case)
        self.cases.append(following.case)
        self._process.send_ahead(self._ahead)

    def _settle_ahead(self) -> None:
        """Wait for the reply to what was sent ahead and is judged later.

        A process that does not reply is replaced; it is blamed when that case is judged.
        """
        message, self._ahead = self._ahead, b""
        if message:
            reply = self._process.ask(message, self.timeout_s)
            if not isinstance(reply, Observed | Invalid):
                self._replaced(reply)

    def _least_timeout(self, reference_s: float) -> float:
        """Return the least timeout of a case for which the reference takes that long."""
        times = _TIMES_INTERPRETED if self.candidate.lane == "interpreter" else _TIMES_REFERENCE
        return min(times * reference_s, _MOST_TIMEOUTS * self._usual_s)

    def _call_before(self, case: Case) -> None:
        """Replace the process by a fresh one that has been called on what the case needs."""
        self.restart_warm()
        for earlier in case.before:
            self.judge(earlier)

    def _replaced(self, reply: Reply | None) -> Failure:
        """Start a fresh process; return the death of the old one as a failure."""
        death = self._process.death(reply)
        self._replace()
        return death

    def _replace(self) -> None:
        self._process.end()
        self.deaths += 1
        self._called = True
        if self._deadline is None:
            self.start()
