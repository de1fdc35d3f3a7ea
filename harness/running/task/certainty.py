"""Tell the deaths that a candidate causes from those that the machine causes.

A crash, a hang or a failed allocation counts only if a fresh process shows it again.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec

from attnproof.harness.model.case import Case
from attnproof.harness.model.verdict import PROCESS, Failure, Verdict
from attnproof.harness.running import interrupt
from attnproof.harness.running.task.candidate_process import LATE
from attnproof.harness.running.task.shrink import SHRINK_SECONDS
from attnproof.harness.running.task.workers import Worker

_OUT_OF_MEMORY = ("MemoryError", "allocate memory")
"""Parts of messages of failed allocations, in Python and PyTorch."""
_MOST_HISTORY_S = 20.0
"""Seconds that may be spent on the earlier cases of a process to see a failure again."""
_TIMES_FIRST_CALL = 2
"""Factor on the timeout of a first call that was late."""
_SECOND_SHARE = 0.5
"""Factor on the timeout of a late call that is made again: on a busy machine the least limit below
would take a call that is slow for one that hangs."""
_TIMES_SLOWEST, _SHORTEST_S = 20, 1.0
"""Limit on a call of a candidate that hangs: a factor on its slowest call, and the least limit."""
LEFT_BEHIND = "leaves processes behind"


class Certainty:
    """The deaths of one candidate: which happened again, and which did not."""

    def __init__(self, worker: Worker, shrink_seconds: float = SHRINK_SECONDS) -> None:
        self.unrepeated: list[str] = []
        """Deaths that did not happen again, in words."""
        self._worker = worker
        self._timeout_s = worker.timeout_s
        """Timeout of a case in seconds, before a shorter one is learnt."""
        self._shrink_seconds = shrink_seconds
        self._confirmed: set[tuple[str, str, str]] = set()
        """Root causes that happened again in a fresh process."""
        self._after_others: set[tuple[str, str, str]] = set()
        """Root causes that happen only after the same earlier calls."""
        self._first_hangs = False
        """True if the first call of a fresh process hangs."""

    def judge(self, case: Case, *, digested: bool, repeated: bool) -> Verdict:
        """Return the worker's verdict on the case, without deaths that do not happen again."""
        worker, deaths = self._worker, self._worker.deaths
        verdict = worker.judge(case, digested=digested, repeated=repeated)
        death = next((f for f in verdict.failures if is_death(f)), None)
        if death is None or death.root in self._confirmed:
            return verdict
        if death.root in self._after_others:  # the case alone does not show it
            return worker.judge(case)
        replaced = worker.deaths > deaths
        history = list(worker.ended_cases if replaced else worker.cases)[:-1]
        first = all(earlier.fault for earlier in history)
        if death.field == LATE and first:  # it may have compiled something
            self._first_hangs = True
            worker.restart(_TIMES_FIRST_CALL * self._timeout_s)
        elif death.field == LATE:
            worker.timeout_s = self._timeout_s * _SECOND_SHARE
        if not replaced:  # it lives: memory that was not there, or a forked copy
            worker.restart_warm()
        again = worker.judge(case)
        if any(failure.root == death.root for failure in again.failures):
            self._confirmed.add(death.root)
            if death.field == LATE and not first:
                learnt = max(_SHORTEST_S, _TIMES_SLOWEST * worker.slowest_s)
                worker.timeout_s = min(self._timeout_s, learnt)
            return verdict
        if death.field == LATE and first:
            self._first_hangs = False
            return again
        if self._repeats_after(history, case, death):
            self._after_others.add(death.root)
            message = f"{death.message}, after {len(history)} other calls in the same process"
            after_others = msgspec.structs.replace(death, message=message)
            return msgspec.structs.replace(verdict, failures=(after_others,))
        worker.timeout_s = self._timeout_s
        self.unrepeated.append(f"{death.message} in case {case.id}")
        return again

    def repeated(self, death: Failure, case: Case) -> Failure | None:
        """Return the death of a fresh process in the case, None if there is none."""
        limit, self._worker.timeout_s = self._worker.timeout_s, self._timeout_s
        self._worker.restart_warm()
        try:
            failures = self._worker.judge(case).failures
        finally:
            self._worker.timeout_s = limit
        return next((failure for failure in failures if failure.root == death.root), None)

    def was_hurried(self, failure: Failure) -> bool:
        """True if the failure is a hang within a learnt limit."""
        return failure.field == LATE and self._worker.timeout_s < self._timeout_s

    def shrink_seconds(self, failure: Failure) -> float:
        """Return the time limit of shrinking; a hang is complete within three timeouts.

        0 for a death that only earlier calls bring about: a smaller case alone cannot show it.
        """
        if failure.root in self._after_others:
            return 0.0
        if failure.field != LATE:
            return self._shrink_seconds
        # A first call was given three already, as it may have compiled something.
        return 0.0 if self._first_hangs else min(self._shrink_seconds, self._timeout_s / 4)

    def _repeats_after(self, history: Collection[Case], case: Case, death: Failure) -> bool:
        """True if a fresh process dies in the case after the same calls as before."""
        self._worker.restart_warm()
        end = time.monotonic() + _MOST_HISTORY_S
        for earlier in history:
            interrupt.check()
            deaths = self._worker.deaths
            self._worker.judge(earlier)
            if self._worker.deaths > deaths or time.monotonic() > end:
                return False
        return any(failure.root == death.root for failure in self._worker.judge(case).failures)


def is_death(failure: Failure) -> bool:
    """True if the failure may be the machine's: a death, or memory that was not there."""
    if failure.oracle == PROCESS:
        return failure.field not in ("", LEFT_BEHIND)
    return any(words in failure.message for words in _OUT_OF_MEMORY)
