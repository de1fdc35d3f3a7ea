"""Failures that show only after other calls in the same process.

Bug classes: a module-level cache with an incomplete key, a memo by shape, a counter, a flag that
one certain batch sets. A case names the calls that it needs in `Case.before`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from attnproof.harness.model.case import MOST_BEFORE, Case
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.determinism import FRESH_PROCESS
from attnproof.harness.running import interrupt
from attnproof.harness.running.task.workers import Worker

SEARCH_SECONDS = 20.0
"""Seconds in which tries for the earlier calls of one failure may begin, and to leave some out."""


def with_earlier_calls(
    case: Case,
    history: Sequence[Case],
    shows: Callable[[Case], bool],
    end: float,
) -> Case | None:
    """Return the case after the last of the earlier calls, None if it shows nothing after them.

    `history` are the calls before it in its process, `shows` is called with the case after twice
    as many of them each time: what is near is found soon. No search begins after the time `end`.
    """
    earlier = [msgspec.structs.replace(previous, before=()) for previous in history[-MOST_BEFORE:]]
    count = min(1, len(earlier))
    while count and time.monotonic() < end:
        interrupt.check()
        after = msgspec.structs.replace(case, before=tuple(earlier[-count:]))
        if shows(after):
            return after
        count = min(2 * count, len(earlier)) if count < len(earlier) else 0
    return None


def named_by_calls(failure: Failure, case: Case) -> Failure:
    """Return the failure with the number of calls that it needs, if it needs some."""
    calls = len(case.before)
    if not calls:
        return failure
    what = "another call" if calls == 1 else f"{calls} other calls"
    return msgspec.structs.replace(
        failure,
        diagnosis=FRESH_PROCESS.diagnosis,
        fits=None,
        message=f"{failure.message}, after {what} in the same process",
    )


def failures_of_earlier_calls(worker: Worker, case: Case) -> tuple[Failure, ...]:
    """Return the failure of a case whose result is another one without the calls before it."""
    if not case.before:
        return ()
    worker.restart_warm()
    alone = worker.call_once(msgspec.structs.replace(case, before=())).digest
    after = worker.call_once(case).digest
    if alone == after:
        return ()
    return (msgspec.structs.replace(FRESH_PROCESS, expected=alone, got=after),)
