"""The record of a campaign: one run, made of the outcomes of all its tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from attnproof.harness.campaign.driver import Driver
from attnproof.harness.campaign.examiner_process import LINK, ExaminerProcess
from attnproof.harness.campaign.records import LinkRequest, Pair
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Run
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.parent.plan import Plan, Skip, find_skip
from attnproof.harness.running.parent.task_process import skipped
from attnproof.harness.running.task.deviations import Explained
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.verbs.messages import complain
from attnproof.harness.verbs.options import VerifyOptions
from attnproof.harness.verbs.run_record import coverage_notes, record_run

_MAP_NOTE = (
    "numbers of cases in the map of the inputs: a campaign keeps the cases that were first to fill "
    "a pair of cells"
)


def skip_of(operation: Operation, candidate: Candidate, plan: Plan) -> Skip | None:
    """Return why a pair gets no task, None if it gets some."""
    skip = find_skip(operation, candidate)
    lacking = plan.lacking.get(candidate.name, {}).get(operation.name)
    return Skip("NOT OFFERED", lacking) if skip is None and lacking is not None else skip


def campaign_run(
    driver: Driver, plan: Plan, options: VerifyOptions, command: str, *, interrupted: bool
) -> Run:
    """Return one run with the outcomes of all tasks of the campaign."""
    plan = replace(plan, settings=driver.aim.settings)
    outcomes = [
        _outcome(driver, plan, operation, candidate)
        for candidate in plan.candidates
        for operation in plan.operations
    ]
    outcomes = outcomes if interrupted else _linked(outcomes, plan)
    record = record_run(plan, outcomes, options, command, interrupted, peers=())
    record.started = driver.ledger.begun.started
    record.seconds = round(driver.worked_s, 1)
    # The report is of all starts together: it replaces an earlier one.
    record.settings |= {"interrupted": False, "tasks": driver.state.tasks}
    record.notes[:0] = [_MAP_NOTE, *coverage_notes(plan)]
    return record.build()


def _outcome(driver: Driver, plan: Plan, operation: Operation, candidate: Candidate) -> Outcome:
    skip = skip_of(operation, candidate, plan)
    if skip is None:
        state = driver.state.pairs[Pair(operation.name, candidate.name)]
        return state.outcome(
            operation.name,
            operation.section,
            candidate.name,
            candidate.judging(operation.name).lane,
        )
    return skipped(operation, candidate, skip)


def _linked(outcomes: list[Outcome], plan: Plan) -> list[Outcome]:
    """Return the outcomes; findings that follow from another operation's are named there."""
    if sum(bool(outcome.findings) for outcome in outcomes) < 2:
        return outcomes
    names = [operation.name for operation in plan.operations]
    request = LinkRequest(names, plan.candidates, plan.settings, outcomes)
    try:
        # Ray has left threads here: a process that forks must not have them.
        examiner = ExaminerProcess()
        answer = examiner.ask(LINK, msgspec.msgpack.encode(request), "")
        examiner.stop()
    except InfrastructureError as error:
        complain(f"findings of one root cause in several operations are listed apart: {error}")
        return outcomes
    return msgspec.msgpack.decode(answer, type=list[Outcome])


def write_cases(driver: Driver, folder: Path) -> None:
    """Write a ledger for each pair, with the case of each root cause, as `verify` leaves them."""
    for number, (pair, state) in enumerate(driver.state.pairs.items()):
        if not state.known:
            continue
        path = folder / f"ledger-{number:05}.jsonl"
        ledger = Ledger(path, pair.operation, pair.candidate)
        for root_cause in state.known.values():
            ledger.announce(root_cause.smallest)
            ledger.settle(root_cause.smallest.case, Explained((root_cause.failure,)))
        ledger.close()
