"""`attnproof replay`: run a saved case again and print it with expected and actual values."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import msgspec
from rich.text import Text

from attnproof.harness.escaping import escape_lines, shell_command, shell_path
from attnproof.harness.guard import attempt
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Difference
from attnproof.harness.model.verdict import Explanation
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.diagnosis import heading, sentence
from attnproof.harness.oracles.errors import NAME as RAISED
from attnproof.harness.report.pictures.sequence_input import case_steps
from attnproof.harness.report.shared.literal import shown_literal
from attnproof.harness.report.shared.wording import shared_mistake
from attnproof.harness.report.terminal.case import draw_case, draw_difference
from attnproof.harness.report.terminal.sequence import draw_steps
from attnproof.harness.running.candidates import installed_target, resolve
from attnproof.harness.running.cases import CaseError, CaseFile, find_case
from attnproof.harness.running.errors import (
    INCOMPLETE,
    MISMATCH,
    VERIFIED,
    InfrastructureError,
    UsageError,
)
from attnproof.harness.running.interface_choice import interface_line, with_interface
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.parent.plan import find_skip
from attnproof.harness.running.task.broad_deviations import broad_entries
from attnproof.harness.running.task.candidate_process import (
    CandidateUnloadableError,
    Launching,
    launching,
)
from attnproof.harness.running.task.deviations import (
    Explained,
    deviations_of,
    explain,
    with_deviations,
)
from attnproof.harness.running.task.earlier_calls import failures_of_earlier_calls, named_by_calls
from attnproof.harness.running.task.engine_deviations import engine_sentence
from attnproof.harness.running.task.further_calls import failures_of_further_calls
from attnproof.harness.running.task.left_behind import left_behind
from attnproof.harness.running.task.other_interfaces import interface_sentence
from attnproof.harness.running.task.triton_launches import launching_operations
from attnproof.harness.running.task.workers import InvalidCaseError, Worker
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.verbs.checks import check_call
from attnproof.harness.verbs.options import MEMORY_BYTES, ReplayOptions
from attnproof.harness.verbs.screen import Screen
from attnproof.harness.verbs.selection import with_contract


def replay(options: ReplayOptions, *, command: str = "attnproof replay") -> int:
    """Run the case on each candidate and print the results; return the exit code.

    `command` is the command line, which a message repeats. Raise UsageError if the case or a
    candidate cannot be found or loaded.
    """
    check_call(options)
    use_operations(options.definitions)
    device, stub = options.device, options.stub
    # Before the case is read, which may be of a builder of theirs.
    named = resolve(options.candidates, device, stub) if options.candidates else []
    try:
        saved = find_case(options.case, options.out)
    except CaseError as error:
        raise UsageError(str(error)) from None
    named = named or resolve(_saved_candidate(saved, command), device, stub)
    candidates = with_deviations(named, options.deviations)
    broad = broad_entries(options.deviations, [ALL[saved.case.operation]])
    candidates = with_interface(with_contract(candidates, options), options.interface)
    warm_up(candidates)
    console = Screen(soft_wrap=True)
    for note in broad:
        console.print_line(f"note: {note}")
    console.print_line(f"case {saved.case.id} of {saved.case.operation}", style="bold")
    console.print(attempt("the literal", lambda: shown_literal(saved.case), str))
    # All of them now: a process that has used a device to judge cannot fork others that use it.
    with ExitStack() as launchers:
        started = [_launcher(candidate, saved.case, launchers) for candidate in candidates]
        codes = [
            _replay_on(candidate, saved.case, console, options, by)
            for candidate, by in zip(candidates, started, strict=True)
        ]
    return max(codes, key=[VERIFIED, INCOMPLETE, MISMATCH].index)


def _launcher(candidate: Candidate, case: Case, launchers: ExitStack) -> Launching:
    """Fork a launcher of workers of the candidate; it is stopped with the others."""
    by = launching(candidate, {case.operation: ALL[case.operation]})
    launchers.callback(by.launcher.stop)
    by.launcher.prepare(b"")
    return by


def _saved_candidate(saved: CaseFile, command: str) -> list[str]:
    """Return the name of the candidate that failed on the case, none without one.

    A case is data, perhaps from a stranger. It selects installed candidates only (UsageError).
    """
    name, target = saved.candidate, saved.target
    if not name and not target:
        return []
    installed = installed_target(name)
    if installed is not None and target in ("", installed):
        return [name]
    option = shell_command(["--candidate", shell_path(target or name)])
    raise UsageError(
        f"the case names the code of candidate {name!r}, which a case file cannot select; "
        f"to run that code: {command} {option}"
    )


def _worker(
    candidate: Candidate, operation: Operation, timeout_s: float, by: Launching | None = None
) -> Worker:
    """Return a worker of the candidate (UsageError)."""
    try:
        return Worker(
            candidate,
            {operation.name: operation},
            timeout_s=timeout_s,
            memory_bytes=MEMORY_BYTES,
            by=by,
        )
    except CandidateUnloadableError as error:
        raise UsageError(str(error)) from None


def _replay_on(
    candidate: Candidate, case: Case, console: Screen, options: ReplayOptions, by: Launching
) -> int:
    operation = ALL[case.operation]
    label = f"{operation.name} [{candidate.name}]"
    skip = find_skip(operation, candidate)
    if skip is not None:
        console.print_line(f"UNVERIFIED {label} {skip.reason.text}")
        return INCOMPLETE
    worker = _worker(candidate, operation, options.timeout_s, by)
    if options.device == "auto" and launching_operations(worker, {operation.name: operation}):
        worker.stop()
        interpreted = msgspec.structs.replace(candidate, lane="interpreter")
        console.print_line(f"{label} launches Triton: judged in the interpreter")
        worker = _worker(interpreted, operation, options.timeout_s)
    if line := interface_line(worker.candidate):
        console.print_line(line)
    try:
        lacking = worker.why_not_offered(operation.name)
        if lacking is not None:
            console.print_line(f"UNVERIFIED {label} not offered: {lacking.text}")
            return INCOMPLETE
        return _judge(worker, case, console, label)
    except InvalidCaseError as error:
        if error.cause is Cause.NOT_PROVIDED:
            console.print_line(f"UNVERIFIED {label} {error.text}")
            return INCOMPLETE
        print(escape_lines(error.log), file=sys.stderr)
        raise InfrastructureError(error.text) from None
    finally:
        worker.stop()


def _judge(worker: Worker, case: Case, console: Screen, label: str) -> int:
    case = worker.in_interface(case)
    observed = (
        worker.judge(case).failures
        or failures_of_further_calls(worker, case)
        or failures_of_earlier_calls(worker, case)
    )
    explanation = attempt(
        "the expected values", lambda: worker.explain(case), lambda fault: Explanation([], fault)
    )
    worker.end_process()
    if worker.survivors:
        observed = (*observed, left_behind(worker.survivors))
    candidate = worker.candidate
    explained = explain(deviations_of(candidate), case, observed, candidate.judged)
    if case.before:
        unknown, advice = (
            tuple(named_by_calls(failure, case) for failure in failures)
            for failures in (explained.unknown, explained.advice)
        )
        explained = explained._replace(unknown=unknown, advice=advice)
    known = [failure for _, failure in explained.known]
    failures = [*explained.unknown, *known, *explained.advice]
    differences: list[Difference] = attempt(
        "the comparison of the outputs",
        lambda: [msgspec.convert(output, Difference) for output in explanation.outputs],
        lambda _fault: [],
    )
    wrong = [difference for difference in differences if not difference.equal]
    console.print(attempt("the picture of the case", lambda: draw_case(case, wrong), Text))
    for line in explanation.arguments:
        console.print_line(line, style="dim")
    steps = explanation.steps or attempt("the steps", lambda: case_steps(case), lambda _fault: [])
    if steps:
        place = failures[0].place if failures else None
        passed = not failures
        # A call that has raised has no states.
        states = [] if failures and failures[0].oracle == RAISED else differences
        console.print(
            attempt(
                "the picture of the steps",
                lambda: draw_steps(steps, states, place, passed=passed),
                Text,
            )
        )
    if not failures:
        console.print_line(f"PASS {label}", style="green")
        return VERIFIED
    if wrong and not steps:
        console.print(attempt("the picture of the outputs", lambda: draw_difference(wrong), Text))
    if explanation.snippet and steps:
        console.print(f"\n{explanation.snippet}\n")
    for failure in failures:
        console.print_line(f"{failure.oracle} ({failure.kind}): {sentence(failure)}")
    oracle = failures[0].oracle
    shared = attempt("a sentence", lambda: shared_mistake(oracle, differences), str)
    if shared:
        console.print(shared)
    log = failures[0].log or explanation.log
    if log:
        console.print(log.rstrip(), style="dim")
    if explained.unknown:
        operation = ALL[case.operation]
        by_interface = attempt(
            "the other interfaces", lambda: interface_sentence(worker, operation, case), str
        )
        by_engine = attempt(
            "the engine", lambda: engine_sentence(candidate, case, explained.unknown[0]), str
        )
        for line in filter(None, (by_interface, by_engine)):
            console.print_line(line)
    return _conclude(explained, console, label)


def _conclude(explained: Explained, console: Screen, label: str) -> int:
    """Print each known deviation and the verdict; return the exit code."""
    for deviation in {deviation.id: deviation for deviation, _ in explained.known}.values():
        text = f"KNOWN {label} {deviation.id}: {deviation.title} ({deviation.reference})"
        console.print_line(text, style="yellow")
    if explained.advice and not explained.unknown:
        advice = explained.advice[0]
        console.print_line(f"ADVICE {label} ({advice.kind}): {heading(advice)}", style="yellow")
    if not explained.unknown:
        return VERIFIED
    console.print_line(f"FAIL {label}: {heading(explained.unknown[0])}", style="bold red")
    return MISMATCH
