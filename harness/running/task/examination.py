"""The state of an examination: judge each case once, count verdicts, keep root causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec

from attnproof.harness.cases.variation.altered_calls import fault_of
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import (
    PROCESS,
    STRICT,
    Failure,
    Kind,
)
from attnproof.harness.oracles import errors
from attnproof.harness.oracles.determinism import FRESH_PROCESS
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import faults_for
from attnproof.harness.running.task.case_process import Following
from attnproof.harness.running.task.certainty import TIMES_FIRST_CALL, Certainty, is_death
from attnproof.harness.running.task.counts import Counts
from attnproof.harness.running.task.deviations import Explained, explain
from attnproof.harness.running.task.earlier_calls import SEARCH_SECONDS, failures_of_earlier_calls
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.running.task.left_behind import left_behind
from attnproof.harness.running.task.root_causes import Root, RootCauses
from attnproof.harness.running.task.shrink import SHRINK_SECONDS, shrink
from attnproof.harness.running.task.workers import InvalidCaseError, Worker

_FRESH_CASES = 10
"""Number of cases that are called again in a fresh process, fewer where fewer are called twice."""
_SPARSE_SHARE = 2
"""One case in this many is called twice on equal input in a sparse run, or rarer where a case is
costly; the others are called with another poison pattern."""
_REPORT_S = 0.5
"""Least seconds between two calls of `reported` without a new root cause."""
_MOST_DEATHS = 80
"""Worker deaths after which an operation is not examined further."""
_MOST_UNREAL_DEATHS = 20
"""Worker deaths by cases of no engine, where those fail no candidate, after which such cases are
left out."""
_TRIES, _DEADLY_TRIES = 1500, 30
"""Cases that shrinking may try; fewer if each try kills a worker."""
_MOST_VERDICTS = 20_000
"""Verdicts kept in memory, so that shrinking judges no case twice."""


class TooManyDeaths(BaseException):
    """The candidate has killed as many workers as an examination allows."""


@dataclass
class Examination:
    """One operation of one candidate: its counts, root causes and known deviations."""

    operation: Operation
    candidate: Candidate
    worker: Worker
    ledger: Ledger
    reported: Callable[[Examination], None]
    """Called after the first case, after each new root cause, and otherwise once in `_REPORT_S`."""
    deviations: tuple[Deviation, ...] = ()
    """Known deviations of the candidate, counted separately; they hide no other failure."""
    judged: frozenset[Kind] = STRICT
    """Classes of failures that fail the candidate; the others are advice."""
    costly_share: int = 1
    """`Settings.costly_share` if a case is costly, otherwise 1."""
    sparse: bool = False
    """`Settings.sparse`."""
    first_turn: int = 0
    """Number of the first case in the turns of a sparse run."""
    shrink_seconds: float = SHRINK_SECONDS
    """`Settings.shrink_seconds`."""
    roots: RootCauses = field(default_factory=RootCauses)
    counts: Counts = field(default_factory=Counts)
    certainty: Certainty = field(init=False)
    """Crashes, hangs and failed allocations that happened again, or did not."""
    _parent: Sourced | None = None
    """First case after which the candidate's process had children."""
    _last: Sourced | None = None
    _following: Sourced | None = None
    """Case of the next `check`, None if it is not known."""
    _unreal_deaths: int = 0
    """Worker deaths by cases of no engine, where those fail no candidate."""
    notes: list[str] = field(default_factory=list)
    """A sentence on each remembered case that was dropped."""
    _report_due: float = 0.0
    """`time.monotonic()` of the next call of `reported`."""
    _verdicts: dict[str, Explained] = field(default_factory=dict)
    _digests: list[tuple[Case, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.certainty = Certainty(self.worker, self.shrink_seconds)

    @property
    def early_faults(self) -> dict[str, Fault]:
        """Faults that are drawn beside good input, none if the contract does not judge them."""
        judged = Kind.CONTRACT in self.judged
        return faults_for(self.operation, self.candidate) if judged else {}

    @property
    def accepts_malformed(self) -> bool:
        """True if malformed input did not raise its error, whether that fails the candidate."""
        roots = (*self.roots.found, *self.counts.advised)
        return any(oracle == errors.NAME for _, oracle, _ in roots)

    @property
    def _share(self) -> int:
        """One case in this many is called twice on equal input."""
        return max(_SPARSE_SHARE if self.sparse else 1, self.costly_share)

    @property
    def is_sequence(self) -> bool:
        """True if the cases are sequences, which take long to find alone and to shrink."""
        return self.operation.inputs.machine is not None

    def fitted(self, sourced: Sourced) -> Sourced:
        """Return the case without what the candidate's interface cannot say."""
        case = self.worker.fitted(sourced.case)
        return sourced if case is sourced.case else msgspec.structs.replace(sourced, case=case)

    def one_ahead(self, cases: Iterable[Sourced]) -> Iterator[Sourced]:
        """Yield the fitted cases; the candidate runs the next one while `check` judges one."""
        fitted = map(self.fitted, cases)
        current = next(fitted, None)
        while current is not None:
            self._following = following = next(fitted, None)
            yield current
            self._following, current = None, following

    def check(self, sourced: Sourced, *, shrinking: bool = False) -> tuple[Failure, ...]:
        """Judge a case and count it; return the failures that fail the candidate.

        A case that was judged before is not run again. Raises TooManyDeaths, DeviationError,
        KeyboardInterrupt.
        """
        interrupt.check()
        if self.worker.deaths >= _MOST_DEATHS:
            raise TooManyDeaths
        sourced = self.fitted(sourced)
        case = sourced.case
        if case.id in self._verdicts:
            return self._verdicts[case.id].unknown
        is_advised = Kind.CONTRACT not in self.judged and bool(self.operation.why_unreal(case))
        if is_advised and self._unreal_deaths >= _MOST_UNREAL_DEATHS:
            return ()
        deaths = self.worker.deaths
        following, self._following = self._following, None
        if following is not None and following.case.id in self._verdicts:
            following = None
        explained = self._run(sourced, self.first_turn + self.counts.cases, following)
        self._unreal_deaths += is_advised * (self.worker.deaths - deaths)
        self.counts.add_case(sourced, shrinking=shrinking)
        self.counts.add_verdict(explained, sourced, shrinking=shrinking)
        if time.monotonic() >= self._report_due:
            self.report()
        return explained.unknown

    def _turn(self, number: int) -> tuple[bool, bool]:
        """Return whether the case of that number is called twice, and with other poison."""
        return number % self._share == 0, not self.sparse or number % _SPARSE_SHARE != 0

    def judge_again(self, sourced: Sourced, judge: Callable[[Case], tuple[Failure, ...]]) -> None:
        """Judge an accepted case by another function; record and shrink a new root cause."""
        self.ledger.announce(sourced)
        explained = self._explain_real(sourced.case, judge(sourced.case))
        self.ledger.settle(sourced.case, explained)
        if not (explained.unknown or explained.known or explained.advice):
            return
        self.counts.add_verdict(explained, sourced)
        failure = self.roots.new_failure(explained.unknown)
        if failure is None:
            return

        def fails(smaller: Sourced) -> Failure | None:
            interrupt.check()
            unknown = self._explain_real(smaller.case, judge(smaller.case)).unknown
            return next((other for other in unknown if other.root == failure.root), None)

        shown, smallest = self._minimise(failure, sourced, fails)
        # A try makes several calls: those that are known to matter are tried alone.
        history: list[Case] | None = [] if self.certainty.depends_on_calls else None
        self._confirm_and_record(shown, smallest, sourced, judge, history)

    def minimise_and_record(self, failure: Failure, sourced: Sourced, first: Sourced) -> None:
        """Add a root cause with the smallest case found; `first` is its first case."""
        smallest = sourced
        try:
            failure, smallest = self.minimise(failure, sourced)
            self._confirm_and_record(failure, smallest, first, self._failures)
        except BaseException:  # an interrupt: what was found so far is kept
            self.record(failure, smallest, first)
            raise

    def minimise(self, failure: Failure, sourced: Sourced) -> tuple[Failure, Sourced]:
        """Return the failure and the smallest case found that fails by the same root cause."""

        def fails(smaller: Sourced) -> Failure | None:
            failures = self._try(smaller).unknown
            new = failures if self.is_sequence else self.roots.new_failures(failures)
            return next((other for other in new if other.root == failure.root), None)

        return self._minimise(failure, sourced, fails)

    def minimise_known(self) -> list[Sourced]:
        """Shrink the smallest case of each known deviation.

        Returns the tried cases with unexplained failures, one for each set of root causes. The
        condition of a deviation is then too narrow, or the candidate has another mistake.
        """
        others: dict[frozenset[Root], Sourced] = {}
        for name, occurrence in self.counts.occurred.items():
            root = occurrence.failure.root

            def deviates(smaller: Sourced, name: str = name, root: Root = root) -> Failure | None:
                explained = self._try(smaller)
                if explained.unknown:
                    roots = frozenset(failure.root for failure in explained.unknown)
                    others.setdefault(roots, smaller)
                    return None
                known = explained.known
                return next((f for d, f in known if d.id == name and f.root == root), None)

            found = self._minimise(occurrence.failure, occurrence.smallest, deviates)
            occurrence.failure, occurrence.smallest = found
        for other in others.values():  # forgotten, as `check` does not count judged cases
            self._verdicts.pop(other.case.id, None)
        return list(others.values())

    @counted(Phase.SHRINK)
    def _minimise(
        self,
        failure: Failure,
        sourced: Sourced,
        wanted: Callable[[Sourced], Failure | None],
        seconds: float | None = None,
    ) -> tuple[Failure, Sourced]:
        """Return the failure and the smallest case found for which `wanted` returns one."""
        best = {sourced.case.id: failure}

        def fails(case: Case) -> bool:
            found = wanted(Sourced(case, sourced.origin, sourced.source))
            if found is not None:
                best[case.id] = found
            return found is not None

        tries = _DEADLY_TRIES if failure.oracle == PROCESS else _TRIES
        if seconds is None:
            seconds = self.certainty.shrink_seconds(failure)
        smallest = shrink(sourced.case, fails, tries, seconds)
        changed = smallest is not sourced.case
        if is_death(failure) and (changed or self.certainty.was_hurried(failure)):
            repeated = self.certainty.repeated(failure, smallest)
            if repeated is None:  # only once: the first case is known to show it again
                return failure, sourced
            best[smallest.id] = repeated
        return best[smallest.id], Sourced(smallest, sourced.origin, sourced.source)

    def _confirm_and_record(
        self,
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
                self.worker.restart_warm()
            try:
                explained = self._explain_real(case, judge(case))
            except InvalidCaseError:
                return None
            if case.before:
                self._verdicts[case.id] = explained
            return next((one for one in explained.unknown if one.root == failure.root), None)

        distinct = {one.case.id: one for one in (smallest, first)}.values()
        cases = [
            (one, self.worker.calls_before(one.case) if history is None else history)
            for one in distinct
        ]
        confirmed = self.certainty.confirmed(failure, cases, shows)
        if confirmed is not None:
            failure, shown = confirmed
            if shown.case.before:
                failure, shown = self._minimise(
                    failure, shown, lambda one: shows(one.case), SEARCH_SECONDS
                )
            if shown.case.before and shown.case.before not in self.certainty.needed:
                self.certainty.needed.append(shown.case.before)
            self.record(failure, shown, first)
        elif self.counts.failed_by_root[failure.root] > 1 and not self.certainty.depends_on_calls:
            message = f"{failure.message}; not again in a fresh process"
            failure = msgspec.structs.replace(failure, message=message)
            self.record(failure, smallest, first)
        else:
            self.certainty.unrepeated.append(f"{failure.message} in case {smallest.case.id}")
            if self.certainty.depends_on_calls:
                self.roots.dismissed.add(failure.root)
            known = self._verdicts.pop(smallest.case.id, Explained((failure,)))
            self._verdicts[smallest.case.id] = Explained()
            self.counts.withdraw(known.unknown)

    def _failures(self, case: Case) -> tuple[Failure, ...]:
        return self.worker.judge(case).failures

    def end_process(self) -> bool:
        """End the candidate's process; record what it leaves behind, True if that is new."""
        self.worker.end_process()
        sourced = self._parent or self._last
        if self.worker.survivors and sourced is not None:
            failure = left_behind(self.worker.survivors)
            if failure.root not in self.roots.found:
                self.counts.add_verdict(self._explain(sourced.case, (failure,)), sourced)
                self.record(failure, sourced, sourced)
                return True
        return False

    def _try(self, sourced: Sourced) -> Explained:
        """Return the verdict on a case without counting it; no failures if it is meaningless."""
        case = sourced.case
        known = self._verdicts.get(case.id)
        if known is not None:
            return known
        if case.fault and not fault_of(self.operation, case).applies(case):
            return Explained()  # the fault would leave the input well-formed
        try:
            return self._run(sourced)
        except InvalidCaseError:
            return Explained()

    def is_new(self, failure: Failure, sourced: Sourced) -> bool:
        """True if no root cause found so far accounts for the failure of the case.

        Always True of a sequence.
        """
        if self.is_sequence:
            return True
        new = self.roots.new_failures(self._try(sourced).unknown)
        return any(other.root == failure.root for other in new)

    def record(self, failure: Failure, smallest: Sourced, first: Sourced) -> None:
        """Add a root cause with its smallest and its first case."""
        shown = self._verdicts.get(smallest.case.id, Explained((failure,))).unknown
        self.roots.add(failure, smallest, first, shown)
        self.report()

    def report(self) -> None:
        """Tell how far the examination is: its process may be killed before its end."""
        self.reported(self)
        self._report_due = time.monotonic() + _REPORT_S

    def repeat_in_fresh_process(self) -> None:
        """Call some cases once more in a new worker, in reverse order (oracle determinism)."""
        earlier = {case.id: self.worker.calls_before(case) for case, _ in self._digests}
        self.worker.restart()
        # First the cases of an engine: what they show is no advice.
        newest_first = self._digests[::-1]
        cases = sorted(newest_first, key=lambda one: self.operation.why_unreal(one[0]))
        for case, digest in cases:
            sourced = Sourced(case, "fuzz", "fresh process")
            self.ledger.announce(sourced)
            verdict = self.worker.call_once(case)
            if any(map(is_death, verdict.failures)):  # perhaps the machine's, or it compiles
                self.worker.restart(TIMES_FIRST_CALL * self.worker.timeout_s)
                verdict = self.worker.call_once(case)
            if verdict.digest == digest:
                self.ledger.settle(case, self._explain(case, verdict.failures))
                continue
            got = verdict.failures[0].diagnosis if verdict.failures else verdict.digest
            failure = msgspec.structs.replace(FRESH_PROCESS, expected=digest, got=got)
            if self._settle_other_digest(failure, sourced, earlier[case.id]):
                return

    def _settle_other_digest(self, failure: Failure, sourced: Sourced, earlier: list[Case]) -> bool:
        """Record why a case has another result in a fresh process, True if that is no advice.

        It is wrong without the earlier calls, or another result after some of them.
        """
        case, later = sourced.case, self.worker.calls_before(sourced.case)
        explained = self._explain_real(case, (failure,))
        self.ledger.settle(case, explained)
        self.worker.restart_warm()
        self._verdicts.pop(case.id, None)
        wrong = self.roots.new_failure(self.check(sourced))
        if wrong is not None:
            self.minimise_and_record(wrong, sourced, sourced)
            return True
        self.counts.add_verdict(explained, sourced)
        if not explained.unknown:
            return False
        self.worker.restart_warm()
        alone = self.worker.call_once(case).digest
        history = later if alone == failure.expected else earlier
        judge = partial(failures_of_earlier_calls, self.worker)
        self._confirm_and_record(explained.unknown[0], sourced, sourced, judge, history)
        return True

    def _explain(self, case: Case, failures: tuple[Failure, ...]) -> Explained:
        return explain(self.deviations, case, failures, self.judged)

    def _explain_real(self, case: Case, failures: tuple[Failure, ...]) -> Explained:
        """Return the explained failures, with the classes that they have on the case."""
        return self._explain(case, self.operation.real_kinds(case, failures))

    def _run(
        self, sourced: Sourced, number: int | None = None, following: Sourced | None = None
    ) -> Explained:
        """Judge a case by all calls, or by those of its number; `following` is sent meanwhile."""
        case = sourced.case
        repeated, poisoned = (True, True) if number is None else self._turn(number)
        self.ledger.announce(sourced)
        if following is not None and number is not None:
            self.ledger.announce(following)
            self.worker.following = Following(following.case, *self._turn(number + 1))
        digested = repeated and len(self._digests) * self._share < _FRESH_CASES
        verdict = self.certainty.judge(
            case, digested=digested, repeated=repeated, poisoned=poisoned
        )
        self._last = sourced
        if self.worker.has_children and self._parent is None:
            self._parent = sourced
        explained = self._explain(case, verdict.failures)
        self.ledger.settle(case, explained)
        self.counts.add_checks(verdict.checks)
        if len(self._verdicts) < _MOST_VERDICTS:
            self._verdicts[case.id] = explained
        if verdict.digest and not explained.unknown:
            self._digests.append((case, verdict.digest))
        return explained
