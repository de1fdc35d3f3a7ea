"""Show a root cause again in a fresh process, and record it with the case that shows it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running import interrupt
from attnproof.harness.running.task.deviations import Explained
from attnproof.harness.running.task.earlier_calls import SEARCH_SECONDS
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.minimising import minimise, shrink_failure
from attnproof.harness.running.task.workers import InvalidCaseError


def judge_again(
    examination: Examination, sourced: Sourced, judge: Callable[[Case], tuple[Failure, ...]]
) -> None:
    """Judge an accepted case by another function; record and shrink a new root cause."""
    examination.ledger.announce(sourced)
    explained = examination.explain_real(sourced.case, judge(sourced.case))
    examination.ledger.settle(sourced.case, explained)
    if not (explained.unknown or explained.known or explained.advice):
        return
    examination.counts.add_verdict(explained, sourced)
    failure = examination.roots.new_failure(explained.unknown)
    if failure is None:
        return

    def fails(smaller: Sourced) -> Failure | None:
        interrupt.check()
        unknown = examination.explain_real(smaller.case, judge(smaller.case)).unknown
        return next((other for other in unknown if other.root == failure.root), None)

    shown, smallest = shrink_failure(examination, failure, sourced, fails)
    # A try makes several calls: those that are known to matter are tried alone.
    history: list[Case] | None = [] if examination.certainty.depends_on_calls else None
    confirm_and_record(examination, shown, smallest, sourced, judge, history)


def minimise_and_record(
    examination: Examination, failure: Failure, sourced: Sourced, first: Sourced
) -> None:
    """Add a root cause with the smallest case found; `first` is its first case."""

    def judge(case: Case) -> tuple[Failure, ...]:
        return examination.worker.judge(case).failures

    smallest = sourced
    try:
        failure, smallest = minimise(examination, failure, sourced)
        confirm_and_record(examination, failure, smallest, first, judge)
    except BaseException:  # an interrupt: what was found so far is kept
        examination.record(failure, smallest, first)
        raise


def confirm_and_record(
    examination: Examination,
    failure: Failure,
    smallest: Sourced,
    first: Sourced,
    judge: Callable[[Case], tuple[Failure, ...]],
    history: list[Case] | None = None,
) -> None:
    """Add a root cause with a case that shows it in a fresh process, perhaps after others.

    One that a single case has shown once is none, and none of what follows from calls that
    another root cause names. A wrong value is never the machine's: that of several cases is
    kept. `history` are the calls before the case, by default those of its process.
    """

    def shows(case: Case) -> Failure | None:
        if not case.before:
            examination.worker.restart_warm()
        try:
            explained = examination.explain_real(case, judge(case))
        except InvalidCaseError:
            return None
        if case.before:
            examination.verdicts[case.id] = explained
        return next((other for other in explained.unknown if other.root == failure.root), None)

    certainty, calls_before = examination.certainty, examination.worker.calls_before
    distinct = {sourced.case.id: sourced for sourced in (smallest, first)}.values()
    cases = [
        (sourced, calls_before(sourced.case) if history is None else history)
        for sourced in distinct
    ]
    confirmed = certainty.confirmed(failure, cases, shows)
    if confirmed is not None:
        failure, shown = confirmed
        if shown.case.before:
            failure, shown = shrink_failure(
                examination, failure, shown, lambda sourced: shows(sourced.case), SEARCH_SECONDS
            )
        if shown.case.before and shown.case.before not in certainty.needed:
            certainty.needed.append(shown.case.before)
        examination.record(failure, shown, first)
    elif examination.counts.failed_by_root[failure.root] > 1 and not certainty.depends_on_calls:
        message = f"{failure.message}; not again in a fresh process"
        failure = msgspec.structs.replace(failure, message=message)
        examination.record(failure, smallest, first)
    else:
        certainty.unrepeated.append(f"{failure.message} in case {smallest.case.id}")
        if certainty.depends_on_calls:
            examination.roots.dismissed.add(failure.root)
        known = examination.verdicts.pop(smallest.case.id, Explained((failure,)))
        examination.verdicts[smallest.case.id] = Explained()
        examination.counts.withdraw(known.unknown)
