"""Cases once more in a fresh process, whose results must be equal (oracle determinism)."""

from __future__ import annotations

from functools import partial

import msgspec

from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.determinism import FRESH_PROCESS
from attnproof.harness.running.task.certainty import TIMES_FIRST_CALL, is_death
from attnproof.harness.running.task.confirming import confirm_and_record, minimise_and_record
from attnproof.harness.running.task.earlier_calls import failures_of_earlier_calls
from attnproof.harness.running.task.examination import Examination


def repeat_in_fresh_process(examination: Examination) -> None:
    """Call some cases once more in a new worker, in reverse order (oracle determinism)."""
    earlier = {case.id: examination.worker.calls_before(case) for case, _ in examination.digests}
    examination.worker.restart()
    # First the cases of an engine: what they show is no advice.
    newest_first = examination.digests[::-1]
    cases = sorted(newest_first, key=lambda pair: examination.operation.why_unreal(pair[0]))
    for case, digest in cases:
        sourced = Sourced(case, "fuzz", "fresh process")
        examination.ledger.announce(sourced)
        verdict = examination.worker.call_once(case)
        if any(map(is_death, verdict.failures)):  # perhaps the machine's, or it compiles
            examination.worker.restart(TIMES_FIRST_CALL * examination.worker.timeout_s)
            verdict = examination.worker.call_once(case)
        if verdict.digest == digest:
            examination.ledger.settle(case, examination.explain(case, verdict.failures))
            continue
        got = verdict.failures[0].diagnosis if verdict.failures else verdict.digest
        failure = msgspec.structs.replace(FRESH_PROCESS, expected=digest, got=got)
        if _settle_other_digest(examination, failure, sourced, earlier[case.id]):
            return


def _settle_other_digest(
    examination: Examination, failure: Failure, sourced: Sourced, earlier: list[Case]
) -> bool:
    """Record why a case has another result in a fresh process, True if that is no advice.

    It is wrong without the earlier calls, or another result after some of them.
    """
    case, calls_before = sourced.case, examination.worker.calls_before(sourced.case)
    explained = examination.explain_real(case, (failure,))
    examination.ledger.settle(case, explained)
    examination.worker.restart_warm()
    examination.verdicts.pop(case.id, None)
    wrong = examination.roots.new_failure(examination.check(sourced))
    if wrong is not None:
        minimise_and_record(examination, wrong, sourced, sourced)
        return True
    examination.counts.add_verdict(explained, sourced)
    if not explained.unknown:
        return False
    examination.worker.restart_warm()
    alone = examination.worker.call_once(case).digest
    history = calls_before if alone == failure.expected else earlier
    judge = partial(failures_of_earlier_calls, examination.worker)
    confirm_and_record(examination, explained.unknown[0], sourced, sourced, judge, history)
    return True
