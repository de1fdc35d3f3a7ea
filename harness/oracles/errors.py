"""Oracle 9, errors: malformed input raises the documented error and writes nothing (rule 0.6).

Bug classes: an empty slice that reaches an assertion (K4), a block table that is too narrow
and leads to a device assert (K5, K6, K14).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnproof.harness.model.fault import Fault
from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import Failure, Kind
from attnproof.harness.oracles.attempt import Attempt
from attnproof.harness.oracles.purity import modified_inputs
from attnproof.harness.oracles.trial import Trial
from attnproof.reference.interface import MetadataError

NAME = "errors"
CONTRACT = "malformed input raises the documented error and writes nothing (rule 0.6)"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield the failures of a malformed call, or of an error on good input.

    Malformed input must raise the documented error for the right field and change no input. Of
    two malformed calls the second has no arguments that have their default.
    """
    if not trial.case.fault:
        if trial.first.error is not None:
            _ = trial.expected  # raises too if the input is not good
            yield _error_on_good_input(trial.first)
        return
    for attempt in trial.guarded:
        failures = [_without(attempt, failure) for failure in _judge_fault(trial, attempt)]
        yield from failures
        if failures:
            return


def _judge_fault(trial: Trial, attempt: Attempt) -> Iterator[Failure]:
    """Yield the failures of one call with malformed input."""
    name, fault = trial.case.fault, trial.fault
    yield from _documented(name, fault, attempt)
    yield from modified_inputs(attempt, NAME, after_error=attempt.error is not None)
    for intrusion in attempt.call.arena.unexpected_writes() if attempt.call.arena else ():
        if not intrusion.inside:
            text = f"a word beside {intrusion.name} was overwritten"
            yield _failure("stray write before the error", name, fault, "no write", text)


def _without(attempt: Attempt, failure: Failure) -> Failure:
    """Return the failure, whose message names the arguments that the call left out."""
    if not attempt.left_out:
        return failure
    text = f"without {', '.join(attempt.left_out)}: {failure.message}"
    return msgspec.structs.replace(failure, message=text)


def checks(trial: Trial) -> int:
    """Return the number of calls: one or two with malformed input, one with good input."""
    return len(trial.guarded) if trial.case.fault else 1


def _error_on_good_input(attempt: Attempt) -> Failure:
    """Return the failure of a candidate that raises on good input."""
    kind = type(attempt.error).__name__
    return Failure(
        oracle=NAME,
        field=f"raises {kind}",
        diagnosis=f"raises {kind} on good input",
        message=f"{kind}: {str(attempt.error)[:300]}{_advice(attempt.error)}",
        expected="a result",
        got=kind,
        log=attempt.log,
    )


def _advice(error: BaseException | None) -> str:
    """Return how to run the kernels of a candidate that Triton cannot launch, "" for others."""
    has_no_gpu = "0 active drivers" in str(error)
    return " (Triton launches no kernel on a CPU: --device interpreter)" if has_no_gpu else ""


def _documented(name: str, fault: Fault, attempt: Attempt) -> Iterator[Failure]:
    # A candidate may not import MetadataError, which is a ValueError.
    accepted = ValueError if fault.error is MetadataError else fault.error
    either = isinstance(attempt.error, ValueError | TypeError) and fault.any_error
    error, wanted = attempt.error, f"{fault.error.__name__} on {fault.named}"
    kind = type(error).__name__
    if error is None:
        yield _failure("accepts malformed input", name, fault, wanted, "no error")
    elif not (either or isinstance(error, accepted)):
        got = f"{kind}: {str(error)[:200]}"
        failure = _failure("wrong error for malformed input", name, fault, wanted, got, attempt.log)
        yield msgspec.structs.replace(failure, other_kind=Kind.CONTRACT)
    elif not fault.any_field and fault.named != _named(error, fault.named):
        got = f"{kind}: {str(error)[:200]}"
        failure = _failure("error does not name the field", name, fault, wanted, got)
        yield msgspec.structs.replace(failure, other_kind=Kind.CONTRACT)


def _named(error: BaseException, field: str) -> str:
    """Return the field that the error names, without an index.

    A ValueError of another class names `field` if its text contains it.
    """
    if isinstance(error, MetadataError):
        return error.field.split("[")[0]
    return field if field in str(error) or not isinstance(error, ValueError) else ""


def _failure(
    diagnosis: str, name: str, fault: Fault, expected: str, got: str, log: str = ""
) -> Failure:
    return Failure(
        oracle=NAME,
        # One finding for all faults with this diagnosis: their cause is one missing check.
        field=diagnosis,
        diagnosis=diagnosis,
        message=f"{fault.detail() or name}: {got}, expected {expected}",
        expected=expected,
        got=got,
        place=Place(fault.named),
        log=log,
    )
