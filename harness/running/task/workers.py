"""The task's side of a worker: send cases, wait for replies, replace a worker that has died."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Reason
from attnproof.harness.model.verdict import ORACLES, PROCESS, Explanation, Failure, Verdict
from attnproof.harness.running.child import Child, EndKind
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.worker.worker import (
    CALL_ONCE,
    EXPLAIN,
    JUDGE,
    JUDGE_AND_DIGEST,
    JUDGE_UNREPEATED,
    Explained,
    Invalid,
    Judged,
    Lost,
    Ready,
    Reply,
    Unloadable,
    serve,
)

_IMPORT_S = 120.0
_FIRST_CALL_S = 90.0
"""Timeout of a first call, which may compile, in seconds."""
_LOG_BYTES = 4000
"""Bytes of standard error that a failure shows."""
_decoder = msgspec.msgpack.Decoder(Reply)
_NO_CHECKS = tuple(int(name == PROCESS) for name in ORACLES)
_KINDS_OF_DEATH = {
    EndKind.CRASHED: "crashes",
    EndKind.EXITED: "ends the process",
    EndKind.CLOSED_PIPE: "closes the pipe to the harness and goes on",
}


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
        return f"{self.kind} with {self.detail}" if self.detail else self.kind


class Worker:
    """A forked process with one candidate; restarted when the candidate has killed it."""

    def __init__(
        self,
        candidate: Candidate,
        operations: dict[str, Operation],
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> None:
        self.candidate = candidate
        self.timeout_s = timeout_s
        self.deaths = 0
        self.offers: tuple[str, ...] = ()
        self.withheld: dict[str, str] = {}
        self._operations = operations
        self._memory_bytes = memory_bytes
        self._called = False
        """True after a reply to good input or a death: the next call is no first call."""
        self._stderr = os.memfd_create("candidate-stderr")
        self.start()

    def start(self) -> None:
        """Fork a fresh process and wait until it has imported the candidate."""
        stdout = os.memfd_create("candidate-stdout")
        os.ftruncate(self._stderr, 0)
        os.lseek(self._stderr, 0, os.SEEK_SET)
        self._child = Child(
            partial(serve, self.candidate, self._operations, self._memory_bytes),
            stdout=stdout,
            stderr=self._stderr,
        )
        os.close(stdout)
        reply = _decoded(self._child.receive(_IMPORT_S))
        if isinstance(reply, Ready):
            self.offers, self.withheld = reply.offers, reply.withheld
            return
        reason = reply.reason if isinstance(reply, Unloadable) else self._ended()
        self.stop()
        name = self.candidate.name
        raise CandidateUnloadableError(f"candidate {name} cannot be imported: {reason}")

    def why_not_offered(self, operation: str) -> Reason | None:
        """Return why the candidate does not offer the operation, None if it does."""
        if operation in self.offers:
            return None
        if operation in self.withheld:
            return Reason(Cause.WITHHELD, self.withheld[operation])
        return Reason(Cause.NO_FUNCTION, "the candidate has no such function")

    def judge(self, case: Case) -> Verdict:
        """Return the verdict on a case; a crash or a hang is a verdict too (InvalidCaseError)."""
        return self._verdict(JUDGE, case)

    def judge_and_digest(self, case: Case) -> Verdict:
        """Return the verdict with a hash of the outputs (InvalidCaseError)."""
        return self._verdict(JUDGE_AND_DIGEST, case)

    def judge_unrepeated(self, case: Case) -> Verdict:
        """Return the verdict without that of the oracle determinism (InvalidCaseError)."""
        return self._verdict(JUDGE_UNREPEATED, case)

    def call_once(self, case: Case) -> Verdict:
        """Return the digest of one call's outputs, or the failure that it ended with.

        Raises InvalidCaseError.
        """
        return self._verdict(CALL_ONCE, case)

    def _verdict(self, kind: bytes, case: Case) -> Verdict:
        reply = self._ask(kind, case)
        if isinstance(reply, Judged):
            return reply.verdict
        if isinstance(reply, Invalid):
            raise InvalidCaseError(f"case {case.id} of {case.operation}: {reply.reason}")
        return Verdict((self._replaced(reply),), _NO_CHECKS)

    def explain(self, case: Case) -> Explanation:
        """Return all outputs of the case, none if the candidate dies."""
        reply = self._ask(EXPLAIN, case)
        if isinstance(reply, Explained):
            return reply.explanation
        died = reply is None or isinstance(reply, Lost)
        log = self._replaced(reply).log if died else ""
        script = self._operations[case.operation].call.script(case)
        lines = script.lines if script else ()
        return Explanation([], log, [(line.label, line.code) for line in lines])

    @contextmanager
    def patient(self, times: int) -> Iterator[None]:
        """Multiply the timeout of each reply inside the block."""
        usual, self.timeout_s = self.timeout_s, self.timeout_s * times
        try:
            yield
        finally:
            self.timeout_s = usual

    def restart(self) -> None:
        """Replace the process by a fresh one."""
        self._called = False
        self.stop()
        self.start()

    def stop(self) -> None:
        """Kill the process."""
        self._child.kill()

    def _ask(self, kind: bytes, case: Case) -> Reply | None:
        # A first call gets longer, unless a call has killed a worker before.
        timeout_s = self.timeout_s if self._called else max(self.timeout_s, _FIRST_CALL_S)
        reply = _decoded(self._child.ask(kind + encode(case), timeout_s))
        self._called |= reply is not None and not case.fault
        return reply

    def _replaced(self, reply: Reply | None) -> Failure:
        """Start a fresh process; return the death of the old one as a failure."""
        if isinstance(reply, Lost):
            self.stop()
            death, log = _Death("loses the device", reply.reason), reply.log
        else:
            death = self._ended()
            log = os.pread(self._stderr, _LOG_BYTES, 0).decode(errors="replace")
        self.deaths += 1
        self._called = True
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

    def _ended(self) -> _Death:
        """Kill the process that did not reply, and return the way in which it ended."""
        kind, detail = self._child.end()
        if kind is EndKind.LATE:
            return _Death(f"does not answer within {self.timeout_s:g} s")
        return _Death(_KINDS_OF_DEATH[kind], detail)


def _decoded(data: bytes | None) -> Reply | None:
    return None if data is None else _decoder.decode(data)
