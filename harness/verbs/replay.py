"""`attnproof replay`: run a saved case again and print it with expected and actual values."""

from __future__ import annotations

import shlex

import msgspec
from rich.console import Console

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.run import Difference
from attnproof.harness.model.verdict import Failure
from attnproof.harness.operations import ALL
from attnproof.harness.report.pictures.sequence_input import case_steps
from attnproof.harness.report.shared.literal import case_literal
from attnproof.harness.report.shared.wording import shared_mistake
from attnproof.harness.report.terminal.case import draw_case, draw_difference
from attnproof.harness.report.terminal.sequence import draw_steps
from attnproof.harness.running.candidates import installed_target, resolve
from attnproof.harness.running.cases import CaseError, CaseFile, find_case
from attnproof.harness.running.errors import INCOMPLETE, MISMATCH, VERIFIED, UsageError
from attnproof.harness.running.parent.plan import find_skip
from attnproof.harness.running.task.deviations import (
    Explained,
    deviations_of,
    explain,
    with_deviations,
)
from attnproof.harness.running.task.workers import (
    CandidateUnloadableError,
    InvalidCaseError,
    Worker,
)
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.verbs.options import MEMORY_BYTES, ReplayOptions


def replay(options: ReplayOptions) -> int:
    """Run the case on each candidate and print the results; return the exit code.

    Raise UsageError if the case or a candidate cannot be found or loaded.
    """
    try:
        saved = find_case(options.case, options.out)
    except CaseError as error:
        raise UsageError(str(error)) from None
    names = options.candidates or _saved_candidate(saved, options.case)
    candidates = with_deviations(resolve(names, options.device), options.deviations)
    warm_up()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"case {saved.case.id} of {saved.case.operation}", style="bold")
    console.print(case_literal(saved.case), markup=False)
    codes = [
        _replay_on(candidate, saved.case, console, options.timeout_s) for candidate in candidates
    ]
    return max(codes, key=[VERIFIED, INCOMPLETE, MISMATCH].index)


def _saved_candidate(saved: CaseFile, typed: str) -> list[str]:
    """Return the name of the candidate that failed on the case, none without one.

    A case is data, perhaps from a stranger. It selects installed candidates only (UsageError).
    """
    name, target = saved.candidate, saved.target
    if not name and not target:
        return []
    installed = installed_target(name)
    if installed is not None and target in ("", installed):
        return [name]
    words = shlex.join(["attnproof", "replay", typed, "--candidate", target or name])
    raise UsageError(
        f"the case names the code of candidate {name!r}, which a case file cannot select; "
        f"to run that code: {words}"
    )


def _replay_on(candidate: Candidate, case: Case, console: Console, timeout_s: float) -> int:
    operation = ALL[case.operation]
    label = f"{operation.name} [{candidate.name}]"
    skip = find_skip(operation, candidate)
    if skip is not None:
        console.print(f"UNVERIFIED {label} {skip.reason.text}", markup=False)
        return INCOMPLETE
    try:
        worker = Worker(
            candidate, {operation.name: operation}, timeout_s=timeout_s, memory_bytes=MEMORY_BYTES
        )
    except CandidateUnloadableError as error:
        raise UsageError(str(error)) from None
    try:
        lacking = worker.why_not_offered(operation.name)
        if lacking is not None:
            console.print(f"UNVERIFIED {label} not offered: {lacking.text}", markup=False)
            return INCOMPLETE
        return _judge(worker, case, console, label)
    except InvalidCaseError as error:
        raise UsageError(f"the case cannot be run: {error}") from None
    finally:
        worker.stop()


def _judge(worker: Worker, case: Case, console: Console, label: str) -> int:
    verdict = worker.judge(case)
    explained = explain(deviations_of(worker.candidate), case, verdict.failures)
    known = [failure for _, failure in explained.known]
    failures = [*explained.unknown, *known]
    explanation = worker.explain(case)
    differences = [msgspec.convert(output, Difference) for output in explanation.outputs]
    wrong = [difference for difference in differences if not difference.equal]
    console.print(draw_case(case, wrong))
    steps = explanation.steps or case_steps(case)
    if steps:
        place = failures[0].place if failures else None
        console.print(draw_steps(steps, differences, place, passed=not failures))
    if not failures:
        console.print(f"PASS {label}", style="green", markup=False)
        return VERIFIED
    if wrong and not steps:
        console.print(draw_difference(wrong))
    if explanation.snippet:
        console.print(f"\n{explanation.snippet}\n", markup=False)
    for failure in failures:
        console.print(_sentence(failure), markup=False)
    shared = shared_mistake(failures[0].oracle, differences)
    if shared:
        console.print(shared, markup=False)
    log = failures[0].log or explanation.log
    if log:
        console.print(log.rstrip(), markup=False, style="dim")
    return _conclude(explained, console, label)


def _conclude(explained: Explained, console: Console, label: str) -> int:
    """Print each known deviation and the verdict; return the exit code."""
    for deviation in {deviation.id: deviation for deviation, _ in explained.known}.values():
        text = f"KNOWN {label} {deviation.id}: {deviation.title} ({deviation.reference})"
        console.print(text, style="yellow", markup=False)
    if not explained.unknown:
        return VERIFIED
    diagnosis = explained.unknown[0].diagnosis
    console.print(f"FAIL {label}: {diagnosis}", style="bold red", markup=False)
    return MISMATCH


def _sentence(failure: Failure) -> str:
    repeated = failure.diagnosis in failure.message
    diagnosis = "" if repeated else f"{failure.diagnosis}: "
    return f"{failure.oracle}: {diagnosis}{failure.message}"
