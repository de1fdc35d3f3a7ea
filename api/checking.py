"""`attnproof.check`: one function on one case, in this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from attnproof import reference
from attnproof.api.card import picture
from attnproof.harness.escaping import escape_line, escape_lines
from attnproof.harness.interfaces.weakest import earlier_form
from attnproof.harness.model.call_kinds import Parts
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, decode
from attnproof.harness.model.inline_case import inline_case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import Difference
from attnproof.harness.model.verdict import Explanation, Failure
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.diagnosis import heading, sentence
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.cases import CaseError, CaseFile, read_case
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.interface_choice import (
    CaseFitter,
    interface_line,
    with_interface,
    with_named_interface,
)
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.task.deviations import explain as divide
from attnproof.harness.running.task.explanation import explain
from attnproof.harness.verbs.options import CallOptions
from attnproof.harness.verbs.selection import with_contract


def check(
    function: Callable[..., Any] | object,
    case: Case | str | os.PathLike[str],
    *,
    operation: str | None = None,
    contract: str = "engine",
    interface: str | None = None,
) -> None:
    """Judge a function on one case on the CPU with all oracles but that of the process.

    `function` is the candidate's function or class for the operation; for an operation with
    steps, the module or object whose attributes are its functions. `case` is a case, the path
    of a case file, or its JSON. `operation`, if given, must be the case's. `contract` and
    `interface` are those of `attnproof verify`.

    The function is called in this process: it may be any callable, a debugger can stop in it,
    and a call takes milliseconds. So a crash or a hang ends this process; `attnproof.verify`
    finds those, as it calls candidates in processes of their own.

    Raise AssertionError with the diagnosis and a picture of the case if the function fails,
    UsageError if the case, the function or an option cannot be used. Failures that the contract
    does not judge are a UserWarning, but that of malformed input, which engines never send.
    """
    use_operations()
    runnable = _case(case)
    if operation is not None and operation != runnable.operation:
        raise UsageError(f"the case is one of {runnable.operation}, not of {operation}")
    chosen = ALL[runnable.operation]
    name = getattr(function, "__qualname__", type(function).__name__)
    holder = _holder(function, chosen)
    (candidate,) = with_interface([Candidate(name, "a function")], interface or "")
    candidate = with_named_interface(candidate, holder)
    (candidate,) = with_contract([candidate], CallOptions(contract=contract))
    offer = _offer(holder, chosen, candidate)
    runnable = _fit_to_interface(runnable, chosen, candidate, holder, offer)
    trial = Trial(chosen, runnable, offer, offered_by(reference, chosen), "cpu")
    failures = chosen.real_kinds(runnable, judge(trial).failures)
    divided = divide((), runnable, failures, candidate.judged)
    if divided.unknown:
        raise AssertionError(_text(trial, divided.unknown, candidate))
    if divided.advice and not runnable.fault:
        first = divided.advice[0]
        reason = chosen.why_unreal(runnable)
        unreal = f" (no engine makes the case: {reason})" if reason else ""
        warnings.warn(
            f"advice on {runnable.operation}: {escape_line(heading(first))}{unreal}; "
            'contract="strict" fails on it',
            stacklevel=2,
        )


def _holder(function: object, operation: Operation) -> object:
    """Return an object that has the function under the operation's name."""
    if list(operation.call.names(operation.name)) == [operation.name] and callable(function):
        return SimpleNamespace(**{operation.name: function})
    return function


def _offer(holder: object, operation: Operation, candidate: Candidate) -> Any:
    """Return the function as the harness calls it (UsageError)."""
    offer = offered_by(holder, operation, candidate.interface)
    if offer is None:
        needed = ", ".join(operation.call.names(operation.name))
        raise UsageError(f"{candidate.name} is not offered as {operation.name}: it needs {needed}")
    return offer


def _fit_to_interface(
    case: Case, operation: Operation, candidate: Candidate, holder: object, offer: Any
) -> Case:
    """Return the case without what the function's interface cannot say."""

    def outputs_of(trial_case: Case) -> dict[Place, Any]:
        trial = Trial(operation, trial_case, offer, offered_by(reference, operation), "cpu")
        attempt = trial.first
        return {} if attempt.error is not None or attempt.malformed else attempt.outputs

    name = operation.name
    forms = {name: earlier_form(name, getattr(holder, name, None))}
    return CaseFitter(candidate, forms, outputs_of)(case)


def _case(case: Case | str | os.PathLike[str]) -> Case:
    """Return a case that can be run (UsageError)."""
    if isinstance(case, str) and case.lstrip().startswith("{"):
        case = _decoded(case)
    if isinstance(case, Case):
        problem = problem_of(case)
        if problem:
            raise UsageError(f"the case cannot be run: {problem}")
        return case
    try:
        return read_case(Path(case)).case
    except CaseError as error:
        raise UsageError(str(error)) from None


def _decoded(text: str) -> Case:
    """Return the case in the JSON of a case file or of a case (UsageError)."""
    try:
        if '"schema"' in text:
            return msgspec.json.decode(text, type=CaseFile).case
        return decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"the text is not a case: {error}") from None


def _text(trial: Trial, failures: tuple[Failure, ...], candidate: Candidate) -> str:
    """Return the failures in words, and a picture of the case."""
    first = failures[0]
    try:
        own = getattr(trial.function, "own", {})
        explanation = explain(trial, Parts({}, tuple(own)), candidate.name)
        outputs = [msgspec.convert(output, Difference) for output in explanation.outputs]
    except Exception as error:  # the failure stands without the comparison
        explanation, outputs = Explanation([], f"the outputs cannot be shown: {error}"), []
    head = f"{trial.case.operation} ({first.kind}): {heading(first)}"
    lines = [head, *(f"  {failure.oracle}: {sentence(failure)}" for failure in failures)]
    drawing = picture(trial.case, outputs, first.place, explanation.steps)
    log = (first.log or explanation.log).rstrip()
    logs = [log] if log else []
    end = [escape_line(interface_line(candidate))]
    end.append(f"case {trial.case.id}: {inline_case(trial.case)}")
    return escape_lines("\n".join([*map(escape_line, lines), "", drawing, *logs, *end]))
