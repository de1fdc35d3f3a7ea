"""Tell the failures that a candidate causes from those that the machine causes.

A failure counts only if a fresh process shows it again, alone or after the same earlier calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.verdict import PROCESS, Failure, Kind, Verdict
from attnproof.harness.running.task.candidate_process import LATE
from attnproof.harness.running.task.earlier_calls import SEARCH_SECONDS, with_earlier_calls
from attnproof.harness.running.task.shrink import SHRINK_SECONDS
from attnproof.harness.running.task.workers import Worker

_OUT_OF_MEMORY = ("MemoryError", "allocate memory")
"""Parts of messages of failed allocations, in Python and PyTorch."""
_MOST_SEARCH_S = 60.0
"""Seconds that may be spent on the earlier calls of wrong values, all together."""
TIMES_FIRST_CALL = 2
"""Factor on the timeout of a first call that was late."""
_SECOND_SHARE = 0.5
"""Factor on the timeout of a late call that is made again: on a busy machine the least limit below
would take a call that is slow for one that hangs."""
_TIMES_SLOWEST, _SHORTEST_S = 20, 1.0
"""Limit on a call of a candidate that hangs: a factor on its slowest call, and the least limit."""
LEFT_BEHIND = "leaves processes behind"


class Certainty:
    """The failures of one candidate: which happened again, and which did not."""

    def __init__(self, worker: Worker, shrink_seconds: float = SHRINK_SECONDS) -> None:
        self.unrepeated: list[str] = []
        """Failures that did not happen again, in words."""
        self._worker = worker
        self._timeout_s = worker.timeout_s
        """Timeout of a case in seconds, before a shorter one is learnt."""
        self._shrink_seconds = shrink_seconds
        self._confirmed: set[tuple[str, str, str]] = set()
        """Root causes that happened again in a fresh process."""
        self._after_others: dict[tuple[str, str, str], Case] = {}
        """Cases of deaths that happen only after the same earlier calls, by root cause."""
        self.needed: list[tuple[Case, ...]] = []
        """Calls that root causes need before their cases."""
        self._search_s = _MOST_SEARCH_S
        self._first_hangs = False
        """True if the first call of a fresh process hangs."""

    def judge(self, case: Case, *, digested: bool, repeated: bool, poisoned: bool) -> Verdict:
        """Return the worker's verdict on the case, without deaths that do not happen again."""
        worker, deaths = self._worker, self._worker.deaths
        verdict = worker.judge(case, digested=digested, repeated=repeated, poisoned=poisoned)
        death = next((f for f in verdict.failures if is_death(f)), None)
        if death is None or death.root in self._confirmed:
            return verdict
        if death.root in self._after_others:  # the case alone does not show it
            return verdict if case.before else worker.judge(case)
        unjudged = death.kind not in worker.candidate.judged
        is_advice = bool(case.fault) and unjudged
        if unjudged and self._interprets and death.field == LATE:  # not worth another timeout
            return verdict
        replaced = worker.deaths > deaths
        history = worker.calls_before(case)
        first = all(earlier.fault for earlier in history)
        if death.field == LATE and first:  # it may have compiled something
            self._first_hangs = True
            worker.restart(TIMES_FIRST_CALL * self._timeout_s)
        elif death.field == LATE and is_advice:
            self._learn_limit()
        elif death.field == LATE:
            worker.timeout_s = self._timeout_s * _SECOND_SHARE
        if not replaced:  # it lives: memory that was not there, or a forked copy
            worker.restart_warm()
        again = worker.judge(case)
        if any(failure.root == death.root for failure in again.failures):
            self._confirmed.add(death.root)
            if death.field == LATE and (is_advice or not first):
                self._learn_limit()
            return verdict
        if unjudged and self._interprets:
            return again
        if death.field == LATE and first:
            self._first_hangs = False
            return again
        shown = self._shown_after_others(death, case, self._judged(history))
        if shown is not None:
            return msgspec.structs.replace(verdict, failures=(shown,))
        self.unrepeated.append(f"{death.message} in case {case.id}")
        return again

    def _shown_after_others(
        self, death: Failure, case: Case, history: list[Case]
    ) -> Failure | None:
        """Return the death that the case shows after some of its history, None if it shows none."""
        end = time.monotonic() + SEARCH_SECONDS
        after = with_earlier_calls(case, history, lambda calls: self._shows(death, calls), end)
        self._worker.timeout_s = self._timeout_s
        if after is None:
            return None
        self._after_others[death.root] = after
        shown, after = self._of_an_engine(death, after, history)
        self._after_others[shown.root] = after
        if death.field == LATE:
            self._learn_limit()
        return shown

    @property
    def _interprets(self) -> bool:
        """True if kernels run in Triton's interpreter, where a wrong address is the process's."""
        return self._worker.candidate.lane == "interpreter"

    def _judged(self, calls: list[Case]) -> list[Case]:
        """Return the calls that can fail the candidate: others may have damaged its process."""
        if Kind.CONTRACT in self._worker.candidate.judged or not self._interprets:
            return calls
        return [call for call in calls if not self._worker.why_unreal(call)]

    def _learn_limit(self) -> None:
        """Limit the calls of a candidate that hangs: it may hang often."""
        learnt = max(_SHORTEST_S, _TIMES_SLOWEST * self._worker.slowest_s)
        self._worker.timeout_s = min(self._timeout_s, learnt)

    def _of_an_engine(
        self, death: Failure, after: Case, history: list[Case]
    ) -> tuple[Failure, Case]:
        """Return the death and its case, with a last call that an engine makes if that dies too.

        Where the calls before decide, the last call is any: it excuses nothing.
        """
        last = next((call for call in reversed(history) if not self._worker.why_unreal(call)), None)
        if last is None or not self._worker.why_unreal(after):
            return death, after
        real = msgspec.structs.replace(last, before=after.before)
        for again in self._worker.judge(real).failures:
            if (again.oracle, again.field) == (death.oracle, death.field):
                return msgspec.structs.replace(again, diagnosis=death.diagnosis), real
        return death, after

    def confirmed(
        self,
        failure: Failure,
        cases: list[tuple[Sourced, list[Case]]],
        shows: Callable[[Case], Failure | None],
    ) -> tuple[Failure, Sourced] | None:
        """Return the failure, and the first of the cases with which a fresh process shows it.

        It is alone, or after some of the calls before it, which are given with it; None if no
        process shows it again. `shows` starts one.
        """
        if is_death(failure):  # `judge` has confirmed it
            after = self._after_others.get(failure.root)
            return failure, _replaced(cases[0][0], after) if after else cases[0][0]
        for sourced, _ in cases:
            again = shows(sourced.case)
            if again is not None:
                return again, sourced
        for sourced, history in cases:
            after = self._after_calls(sourced.case, history, lambda calls: shows(calls) is not None)
            again = None if after is None else shows(after)
            if after is not None and again is not None:
                return again, _replaced(sourced, after)
        return None

    @property
    def depends_on_calls(self) -> bool:
        """True if a failure shows only after other calls."""
        return bool(self.needed or self._after_others)

    def _after_calls(
        self, case: Case, history: list[Case], shows: Callable[[Case], bool]
    ) -> Case | None:
        """Return the case after calls that another failure needs, or after some of its history."""
        for before in self.needed:
            known = msgspec.structs.replace(case, before=before)
            if shows(known):
                return known
        begun = time.monotonic()
        end = begun + min(SEARCH_SECONDS, self._search_s)
        after = with_earlier_calls(case, history, shows, end)
        self._search_s -= time.monotonic() - begun
        return after

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
        # A first call had one timeout and `TIMES_FIRST_CALL` more: it may have compiled something.
        return 0.0 if self._first_hangs else min(self._shrink_seconds, self._timeout_s / 4)

    def _shows(self, death: Failure, case: Case) -> bool:
        """True if the process dies in the case in the same way."""
        return any(failure.root == death.root for failure in self._worker.judge(case).failures)


def _replaced(sourced: Sourced, case: Case) -> Sourced:
    return msgspec.structs.replace(sourced, case=case)


def is_death(failure: Failure) -> bool:
    """True if the failure may be the machine's: a death, or memory that was not there."""
    if failure.oracle == PROCESS:
        return failure.field not in ("", LEFT_BEHIND)
    return any(words in failure.message for words in _OUT_OF_MEMORY)
