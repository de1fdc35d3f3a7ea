"""The process that is sent a candidate's cases: its timeouts, its calls so far, its successors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Reason
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.exchange.observed import ObservedTrial
from attnproof.harness.running.exchange.reports import Observed
from attnproof.harness.running.interface_choice import with_reported_interface
from attnproof.harness.running.task.candidate_process import (
    CandidateProcess,
    Launching,
    launching,
)
from attnproof.harness.running.worker.signatures import Misfit
from attnproof.harness.running.worker.worker import (
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


class Following(NamedTuple):
    """Arguments of the next `Worker.judge`."""

    case: Case
    repeated: bool
    poisoned: bool


class CaseProcess:
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
        self.forms: Mapping[str, str] | None = None
        """Earlier forms of the candidate's functions (`interfaces.weakest.earlier_form`), None
        before the first start."""
        self.launching: frozenset[str] = frozenset()
        """Operations whose functions name kernels of Triton, of a candidate on the CPU."""
        self.misfits: Mapping[str, Misfit] = {}
        """Operations of which no call fits the candidate's signature."""
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
        self.misspelt, self.launching = ready.misspelt, ready.launching
        self.misfits = ready.misfits
        if self.forms is None:
            self.forms = ready.forms
            self.candidate = with_reported_interface(
                self.candidate, ready.interface, ready.interface_reason
            )
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

    def ask(self, kind: bytes, trial: ObservedTrial) -> Reply | None:
        """Send the case of the trial, and call the reference meanwhile; return the reply."""
        timeout_s = self.timeout_s
        if not self._called:
            timeout_s = max(timeout_s, self._first_call_s)
        if self._deadline is not None:
            timeout_s = min(timeout_s, max(0.0, self._deadline - time.monotonic()))

        def call_reference() -> float:
            reference_s = trial.compute_expected(poisoned=kind in (JUDGE, JUDGE_UNREPEATED))
            return self._least_timeout(reference_s) if self._deadline is None else 0.0

        message = kind + encode(trial.case)
        if message != self._ahead:
            self._settle_ahead()
            self.cases.append(trial.case)
        self._ahead = b""
        begun = time.monotonic()
        reply = self._process.ask(message, timeout_s, call_reference)
        if isinstance(reply, Observed):
            if self._called:
                self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            self._called |= not trial.case.fault
            self.has_children = reply.has_children
        return reply

    def kind(self, case: Case, repeated: bool, poisoned: bool) -> bytes:
        """Return the kind of message of a case; a call without stale memory is not poisoned."""
        return _KINDS[repeated, poisoned and self._operations[case.operation].call.poisons]

    def send_ahead(self, following: Following | None) -> None:
        """Let the process run the next case while the report on this one is judged."""
        if following is None or following.case.before:
            return
        case, *parts = following
        self._ahead = self.kind(case, *parts) + encode(case)
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
                self.replaced(reply)

    def _least_timeout(self, reference_s: float) -> float:
        """Return the least timeout of a case for which the reference takes that long."""
        times = _TIMES_INTERPRETED if self.candidate.lane == "interpreter" else _TIMES_REFERENCE
        return min(times * reference_s, _MOST_TIMEOUTS * self._usual_s)

    def replaced(self, reply: Reply | None) -> Failure:
        """Start a fresh process; return the death of the old one as a failure."""
        death = self._process.death(reply)
        self.replace()
        return death

    def replace(self) -> None:
        """Start a fresh process in the place of one that died."""
        self._process.end()
        self.deaths += 1
        self._called = True
        if self._deadline is None:
            self.start()
