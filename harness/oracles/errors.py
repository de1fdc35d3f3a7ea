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
    for made in trial.guarded:
        failures = [_without(made, failure) for failure in _judge_fault(trial, made)]
        yield from failures
        if failures:
            return


def _judge_fault(trial: Trial, made: Attempt) -> Iterator[Failure]:
    """Yield the failures of one call with malformed input."""
    name, fault = trial.case.fault, trial.fault
    yield from _documented(name, fault, made)
    yield from modified_inputs(made, NAME, after_error=made.error is not None)
    for intrusion in made.call.arena.unexpected_writes() if made.call.arena else ():
        if not intrusion.inside:
            text = f"a word beside {intrusion.name} was overwritten"
            yield _failure("stray write before the error", name, fault, "no write", text)


def _without(made: Attempt, failure: Failure) -> Failure:
    """Return the failure, whose message names the arguments that the call left out."""
    if not made.left_out:
        return failure
    text = f"without {', '.join(made.left_out)}: {failure.message}"
    return msgspec.structs.replace(failure, message=text)


def checks(trial: Trial) -> int:
    """Return the number of calls: one or two with malformed input, one with good input."""
    return len(trial.guarded) if trial.case.fault else 1


def _error_on_good_input(made: Attempt) -> Failure:
    """Return the failure of a candidate that raises on good input."""
    kind = type(made.error).__name__
    return Failure(
        oracle=NAME,
        field=f"raises {kind}",
        diagnosis=f"raises {kind} on good input",
        message=f"{kind}: {str(made.error)[:300]}",
        expected="a result",
        got=kind,
        log=made.log,
    )


def _documented(name: str, fault: Fault, made: Attempt) -> Iterator[Failure]:
    # A candidate may not import MetadataError, which is a ValueError.
    accepted = ValueError if fault.error is MetadataError else fault.error
    either = isinstance(made.error, ValueError | TypeError) and fault.any_error
    error, wanted = made.error, f"{fault.error.__name__} on {fault.named}"
    kind = type(error).__name__
    if error is None:
        yield _failure("accepts malformed input", name, fault, wanted, "no error")
    elif not (either or isinstance(error, accepted)):
        got = f"{kind}: {str(error)[:200]}"
        failure = _failure("wrong error for malformed input", name, fault, wanted, got, made.log)
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
