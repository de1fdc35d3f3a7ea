"""The judging side of a worker: send cases, judge the reports.

The reference and the oracles run in this process, which never imports the candidate.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec

from attnproof import reference
from attnproof.harness.guard import attempt
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, encode
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import Cause
from attnproof.harness.model.text import utf8
from attnproof.harness.model.verdict import ERRORS, ORACLES, PROCESS, Explanation, Failure, Verdict
from attnproof.harness.oracles import call_once, judge, later_calls, overlap, recompilation
from attnproof.harness.oracles.later_calls import copied
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.exchange.observed import ForgedReportError, ObservedTrial
from attnproof.harness.running.exchange.reports import Observed
from attnproof.harness.running.interface_choice import CaseFitter
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.programs.source import NoProgramError
from attnproof.harness.running.programs.standalone import standalone_program
from attnproof.harness.running.task.case_process import CaseProcess
from attnproof.harness.running.task.explanation import arguments_of, explain
from attnproof.harness.running.task.process_failures import BREAKS, FORKS, PRINTS
from attnproof.harness.running.worker.signatures import Misfit
from attnproof.harness.running.worker.worker import (
    CALL_AFTER,
    CALL_IN_PLACE,
    CALL_ONCE,
    CALL_STEPS,
    CALL_WITHIN,
    JUDGE_FIRST,
    JUDGE_UNPOISONED,
    Invalid,
    Reply,
)

_TYPE_ERROR = (ERRORS, "raises TypeError")
_NO_CHECKS = tuple(int(name == PROCESS) for name in ORACLES)


class InvalidCaseError(InfrastructureError):
    """The harness could not judge a case."""

    def __init__(self, case: Case, reason: str, log: str, *, not_provided: bool = False) -> None:
        """`log` is the traceback of the fault, which may be one of the reference.

        With `not_provided` it is no fault: the candidate needs an installed engine.
        """
        super().__init__(f"case {case.id} of {case.operation}: {reason}")
        self.log = log
        own = inspect.unwrap(getattr(reference, case.operation, type(self)))
        is_of_a_user = not own.__module__.startswith(f"{reference.__name__.partition('.')[0]}.")
        file = inspect.getsourcefile(own) if is_of_a_user else ""
        # A frame of the reference, or the place that the message of its definition begins with.
        by_reference = is_of_a_user and (f'"{file}"' in log or f" {file}:" in reason)
        self.cause = Cause.REFERENCE_FAILED if by_reference else Cause.INVALID_CASE
        self.failed = "the reference" if by_reference else "the harness"
        self.text = f"{self.failed} failed on {self}"
        if not_provided:
            self.cause, self.text = Cause.NOT_PROVIDED, reason


def _named_by_signature(failure: Failure, misfit: Misfit) -> Failure:
    """Return the failure with the signature as its cause, if it may follow from that."""
    if not misfit.by_order and (failure.oracle, failure.field) != _TYPE_ERROR:
        return failure
    return msgspec.structs.replace(
        failure, diagnosis=f"its signature {misfit.what}", message=misfit.detail, fits=None
    )


class Worker(CaseProcess):
    """A candidate's process, and the judge of what it replies."""

    @cached_property
    def _case_fitter(self) -> CaseFitter:
        return CaseFitter(self.candidate, self.forms or {}, self._outputs_of_trial)

    def in_interface(self, case: Case) -> Case:
        """Return the case without what the candidate's interface cannot say."""
        if case.before:
            before = tuple(map(self._case_fitter, case.before))
            case = msgspec.structs.replace(case, before=before)
        return self._case_fitter(case)

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
            self.kind(case, repeated, poisoned),
            case,
            lambda trial: judge(trial, digested=digested, repeated=repeated),
        )
        if not verdict.failures:
            return verdict
        failures = self._operations[case.operation].real_kinds(case, verdict.failures)
        if case.operation in self.misfits:
            misfit = self.misfits[case.operation]
            failures = tuple(_named_by_signature(failure, misfit) for failure in failures)
        return msgspec.structs.replace(verdict, failures=failures)

    def call_once(self, case: Case) -> Verdict:
        """Return the digest of one call's outputs, or the failure that it ended with.

        Raises InvalidCaseError.
        """
        return self._verdict(CALL_ONCE, case, call_once)

    def outputs(self, case: Case) -> dict[Place, Any]:
        """Return a copy of the outputs of one call, none if there are none (InvalidCaseError)."""
        outputs: dict[Place, Any] = {}

        def keep(trial: ObservedTrial) -> Verdict:
            first = trial.first
            if first.error is None and not first.malformed:
                outputs.update((place, copied(value)) for place, value in first.outputs.items())
            return Verdict((), _NO_CHECKS)

        self._verdict(CALL_ONCE, case, keep)
        return outputs

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
        return self._in_kinds_of(verdict, case, other)

    def call_within(self, case: Case, other: Case) -> Verdict:
        """Call the candidate on the case, and on another one before that call has ended.

        The failures are those of `oracles.overlap`, or a death. Raises InvalidCaseError.
        """
        self.cases.append(other)
        verdict = self._verdict(
            CALL_WITHIN + encode(other) + b"\n",
            case,
            lambda trial: Verdict(tuple(overlap.judge(trial.overwritten)), _NO_CHECKS),
        )
        return self._in_kinds_of(verdict, case, other)

    def _in_kinds_of(self, verdict: Verdict, *cases: Case) -> Verdict:
        """Return the verdict with the classes that its failures have on these cases."""
        failures = verdict.failures
        for case in cases:
            failures = self._operations[case.operation].real_kinds(case, failures)
        return msgspec.structs.replace(verdict, failures=failures)

    def compiles_again(self, steps: Sequence[Case]) -> tuple[Failure, ...]:
        """Return a failure for each kernel that later steps of an engine compile again.

        None if the candidate dies. Raises InvalidCaseError.
        """
        *earlier, last = map(self.in_interface, steps)
        self.cases.extend(earlier)
        lines = b"".join(encode(case) + b"\n" for case in earlier)
        failures: list[Failure] = []

        def read(trial: ObservedTrial) -> Verdict:
            failures.extend(recompilation.judge(trial.versions))
            return Verdict((), _NO_CHECKS)

        self._verdict(CALL_STEPS + lines, last, read)
        return tuple(failures)

    def explain(self, case: Case) -> Explanation:
        """Return all outputs of the case, none if the candidate dies, and its arguments."""
        explanation = self._outputs_explained(case)
        if explanation.steps:
            return explanation
        # A new call: in that of the reference, tolerant outputs have another dtype.
        arguments = attempt(
            "the arguments", lambda: arguments_of(self._trial(case).prepare(0)), lambda _fault: []
        )
        return self._with_program(msgspec.structs.replace(explanation, arguments=arguments), case)

    def _with_program(self, explanation: Explanation, case: Case) -> Explanation:
        """Return the explanation with a program of the call, or why there is none."""
        wrong = [output["field"] for output in explanation.outputs if not output["equal"]]
        program, reason = "", "one call alone gives the expected values"
        if wrong or explanation.log or not explanation.outputs:
            try:
                program, reason = standalone_program(self._trial(case), self.candidate, wrong), ""
            except NoProgramError as error:
                reason = str(error)
            except Exception as error:  # the finding stands without it
                reason = f"{type(error).__name__}: {error}"
        return msgspec.structs.replace(explanation, snippet=utf8(program), no_snippet=utf8(reason))

    def _outputs_explained(self, case: Case) -> Explanation:
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
            log = self.replaced(reply).log
        return Explanation([], log, steps)

    def _verdict(
        self, kind: bytes, case: Case, judged: Callable[[ObservedTrial], Verdict]
    ) -> Verdict:
        following, self.following = self.following, None
        trial = self._trial(case)
        trial.poisons = kind not in (JUDGE_UNPOISONED, JUDGE_FIRST)
        reply = self._asked_about(kind, trial)
        if isinstance(reply, Invalid):
            if reply.not_provided:
                raise InvalidCaseError(case, reply.reason, "", not_provided=True)
            if not self._reference_can(kind, case):
                if not self._process.runs:
                    self.start()
                raise InvalidCaseError(case, reply.reason, reply.log)
            self.replace()
            failure = msgspec.structs.replace(BREAKS, got=reply.reason, log=reply.log)
            return Verdict((failure,), _NO_CHECKS)
        if not isinstance(reply, Observed):
            return Verdict((self.replaced(reply),), _NO_CHECKS)
        try:
            trial.add(reply, self._launching.memory)
            self.send_ahead(following)
            verdict = judged(trial)
        except ForgedReportError:
            self._process.forged()
            return Verdict((self.replaced(None),), _NO_CHECKS)
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
        if trial.case.before:  # of a fresh process
            self.restart_warm()
            for earlier in trial.case.before:
                self.judge(earlier)
        return self.ask(kind, trial)
