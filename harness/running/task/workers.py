"""The parent's side of a worker: ask, wait no longer than agreed, bury, start another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import ORACLES, Explanation, Failure, Verdict
from attnproof.harness.running import interrupt
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.processes import ended
from attnproof.harness.running.worker.worker import (
    EXPLAIN,
    JUDGE,
    JUDGE_AND_DIGEST,
    Explained,
    Invalid,
    Judged,
    Lost,
    Ready,
    Reply,
    Unloadable,
    serve,
)

_IMPORT_SECONDS = 120.0
_FIRST_CALL_SECONDS = 90.0
"""What a candidate compiles, it compiles when it is first called: once, if it may finish."""
_DYING_SECONDS = 5.0
"""What a process may take to die once its end of the pipe is closed."""
_LOOK_UP_SECONDS = 0.1
"""How often a wait looks whether the user wants to stop."""
_decoder = msgspec.msgpack.Decoder(Reply)
_NO_CHECKS = tuple(int(name == "process") for name in ORACLES)


class CandidateUnloadableError(InfrastructureError):
    """The candidate's import failed or never ended."""


class InvalidCaseError(InfrastructureError):
    """The harness could not judge a case."""


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
        """Whether it was once called with good input, or has died trying."""
        self._stderr = os.memfd_create("candidate-stderr")
        self._pid = 0
        self._connection: Connection | None = None
        self.start()

    def start(self) -> None:
        """Fork a fresh process and wait until it has imported the candidate."""
        ours, theirs = multiprocessing.Pipe()
        stdout = os.memfd_create("candidate-stdout")
        os.ftruncate(self._stderr, 0)
        os.lseek(self._stderr, 0, os.SEEK_SET)
        pid = os.fork()
        if not pid:
            ours.close()
            os.dup2(stdout, 1)
            os.dup2(self._stderr, 2)
            try:
                serve(self.candidate, self._operations, theirs, self._memory_bytes)
            finally:
                os._exit(70)
        theirs.close()
        os.close(stdout)
        self._pid, self._connection = pid, ours
        reply = self._receive(_IMPORT_SECONDS)
        if isinstance(reply, Ready):
            self.offers, self.withheld = reply.offers, reply.withheld
            return
        reason = reply.reason if isinstance(reply, Unloadable) else self._bury()
        self.stop()
        name = self.candidate.name
        raise CandidateUnloadableError(f"candidate {name} cannot be imported: {reason}")

    def judge(self, case: Case, *, digested: bool = False) -> Verdict:
        """The verdict on a case; a crash or a hang is a verdict too (InvalidCaseError)."""
        reply = self._ask(JUDGE_AND_DIGEST if digested else JUDGE, case)
        if isinstance(reply, Judged):
            return reply.verdict
        if isinstance(reply, Invalid):
            raise InvalidCaseError(f"case {case.id} of {case.operation}: {reply.reason}")
        return Verdict((self._obituary(reply),), _NO_CHECKS)

    def explain(self, case: Case) -> Explanation:
        """All outputs of the case, none if the candidate dies."""
        reply = self._ask(EXPLAIN, case)
        if isinstance(reply, Explained):
            return reply.explanation
        ended = reply is None or isinstance(reply, Lost)
        log = self._obituary(reply).log if ended else ""
        script = self._operations[case.operation].call.script(case)
        lines = script.lines if script else ()
        return Explanation([], log, [(line.label, line.code) for line in lines])

    @contextmanager
    def patient(self, times: int) -> Iterator[None]:
        """Wait so many times as long for each reply."""
        usual, self.timeout_s = self.timeout_s, self.timeout_s * times
        try:
            yield
        finally:
            self.timeout_s = usual

    def restart(self) -> None:
        """Go on in a fresh process."""
        self._called = False
        self.stop()
        self.start()

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, kind: bytes, case: Case) -> Reply | None:
        assert self._connection is not None
        try:
            self._connection.send_bytes(kind + encode(case))
        except (BrokenPipeError, ConnectionResetError):
            return None
        reply = self._receive(self._patience_s)
        self._called |= reply is not None and not case.fault
        return reply

    @property
    def _patience_s(self) -> float:
        """How long it may take over a case: a first call longer, unless a call has killed it."""
        return self.timeout_s if self._called else max(self.timeout_s, _FIRST_CALL_SECONDS)

    def _receive(self, timeout_s: float) -> Reply | None:
        assert self._connection is not None
        deadline = time.monotonic() + timeout_s
        try:
            while not self._connection.poll(min(_LOOK_UP_SECONDS, timeout_s)):
                interrupt.check()
                if time.monotonic() >= deadline:
                    return None
            reply: Reply = _decoder.decode(self._connection.recv_bytes())
        except (EOFError, OSError):  # closed, in the middle of a reply too
            return None
        return reply

    def _obituary(self, reply: Reply | None) -> Failure:
        """What killed the process, as a failure; a fresh process is started."""
        if isinstance(reply, Lost):
            self.stop()
            diagnosis, log = f"loses the device with {reply.reason}", reply.log
        else:
            diagnosis = self._bury()
            log = os.pread(self._stderr, 4000, 0).decode(errors="replace")
        self.deaths += 1
        self._called = True
        self.start()
        return Failure(
            oracle="process",
            field=diagnosis.split(" with ", maxsplit=1)[0],
            diagnosis=diagnosis,
            message=f"the candidate {diagnosis}",
            expected="a result",
            got=diagnosis,
            log=log,
        )

    def _bury(self) -> str:
        status = ended(self._pid, 0)
        hung_up = status is None and self._has_hung_up()
        if hung_up:
            status = ended(self._pid, _DYING_SECONDS)
        if status is None:
            self.stop()
            if hung_up:
                return "closes the pipe to the harness and goes on"
            return f"does not answer within {self.timeout_s:g} s"
        self._pid = 0
        self.stop()
        if os.WIFSIGNALED(status):
            return f"crashes with {signal.Signals(os.WTERMSIG(status)).name}"
        return f"ends the process with status {os.WEXITSTATUS(status)}"

    def _has_hung_up(self) -> bool:
        """Whether its end of the pipe is closed: mostly it is dying. Who answers late is not."""
        assert self._connection is not None
        try:
            while self._connection.poll(0.2):
                self._connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False
