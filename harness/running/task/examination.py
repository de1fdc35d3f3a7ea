"""The state of an examination: judge each case once, count verdicts, keep root causes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from attnproof.harness.cases.variation.altered_calls import alteration_of, fault_of
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Failure, Kind
from attnproof.harness.oracles import errors
from attnproof.harness.running import interrupt
from attnproof.harness.running.loading import faults_for
from attnproof.harness.running.task.candidate_process import LATE
from attnproof.harness.running.task.case_process import Following
from attnproof.harness.running.task.certainty import Certainty
from attnproof.harness.running.task.counts import Counts
from attnproof.harness.running.task.deviations import Explained, explain
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.running.task.left_behind import left_behind
from attnproof.harness.running.task.root_causes import RootCauses
from attnproof.harness.running.task.settings import Settings, is_costly
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
_UNREAL_S = 5.0
"""Least timeout of an interpreted kernel on a case of no engine, where it loops over what its
addresses happen to hold, and where that fails no candidate."""
_MOST_VERDICTS = 20_000
"""Verdicts kept in memory, so that shrinking judges no case twice."""


class TooManyDeaths(BaseException):
    """The candidate has killed as many workers as an examination allows."""


@dataclass
class Examination:
    """One operation of one candidate: its counts, root causes and known deviations."""

    operation: Operation
    candidate: Candidate
    settings: Settings
    worker: Worker
    ledger: Ledger
    reported: Callable[[Examination], None]
    """Called after the first case, after each new root cause, and otherwise once in `_REPORT_S`."""
    deviations: tuple[Deviation, ...] = ()
    """Known deviations of the candidate, counted separately; they hide no other failure."""
    notes: list[str] = field(default_factory=list)
    """A sentence on each remembered case that was dropped."""
    roots: RootCauses = field(init=False)
    counts: Counts = field(default_factory=Counts)
    costly_share: int = field(init=False)
    """`Settings.costly_share` if a case is costly, otherwise 1."""
    certainty: Certainty = field(init=False)
    """Crashes, hangs and failed allocations that happened again, or did not."""
    _parent: Sourced | None = None
    """First case after which the candidate's process had children."""
    _last: Sourced | None = None
    _following: Sourced | None = None
    """Case of the next `check`, None if it is not known."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Malformed cases that were not run, by the argument: the candidate hangs on another of its
    malformed values, and that does not fail it."""
    spared: Counter[str] = field(default_factory=Counter)
    """Well-formed cases of no engine that were not run, by the reason: the candidate dies of
    another one, and that does not fail it."""
    _unreal_deaths: int = 0
    """Worker deaths by cases of no engine, where those fail no candidate."""
    _report_due: float = 0.0
    """`time.monotonic()` of the next call of `reported`."""
    verdicts: dict[str, Explained] = field(default_factory=dict)
    """Verdicts by the ids of their cases."""
    digests: list[tuple[Case, str]] = field(default_factory=list)
    """Accepted cases, each with a hash of its outputs."""

    def __post_init__(self) -> None:
        self.certainty = Certainty(self.worker, self.settings.shrink_seconds)
        self.roots = RootCauses({cause.root: cause for cause in self.settings.known})
        costly = is_costly(self.operation, self.candidate)
        self.costly_share = self.settings.costly_share if costly else 1

    @property
    def early_faults(self) -> dict[str, Fault]:
        """Faults that are drawn beside good input, none if the contract does not judge them."""
        judged = Kind.CONTRACT in self.candidate.judged
        return faults_for(self.operation, self.candidate) if judged else {}

    @property
    def accepts_malformed(self) -> bool:
        """True if malformed input did not raise its error, whether that fails the candidate."""
        roots = (*self.roots.by_root, *self.counts.advised)
        return bool(self.left_out) or any(oracle == errors.NAME for _, oracle, _ in roots)

    @property
    def _share(self) -> int:
        """One case in this many is called twice on equal input."""
        return max(_SPARSE_SHARE if self.settings.sparse else 1, self.costly_share)

    @property
    def is_sequence(self) -> bool:
        """True if the cases are sequences, which take long to find alone and to shrink."""
        return self.operation.inputs.machine is not None

    def in_interface(self, sourced: Sourced) -> Sourced:
        """Return the case without what the candidate's interface cannot say."""
        case = self.worker.in_interface(sourced.case)
        return sourced if case is sourced.case else msgspec.structs.replace(sourced, case=case)

    def one_ahead(self, cases: Iterable[Sourced]) -> Iterator[Sourced]:
        """Yield the cases; the candidate runs the next one while `check` judges this one."""
        rest = map(self.in_interface, cases)
        current = next(rest, None)
        while current is not None:
            self._following = following = next(rest, None)
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
        sourced = self.in_interface(sourced)
        case = sourced.case
        if case.id in self.verdicts:
            return self.verdicts[case.id].unknown
        if self._is_left_out(case):
            self.left_out.update({self._malformed(case)} & self.left_out.keys())
            self.spared.update({self._why_spared(case)} & self.spared.keys())
            return ()
        deaths = self.worker.deaths
        following, self._following = self._following, None
        if following is not None and (
            following.case.id in self.verdicts
            or self._is_left_out(following.case)
            or (self._is_advised(case) and self._is_interpreted)
        ):
            following = None
        # Edge cases have the same places in each run: otherwise half are never poisoned.
        first_turn = self.settings.seed if self.settings.sparse else 0
        limit = self.worker.timeout_s
        if self._is_advised(case) and self._is_interpreted:
            self.worker.timeout_s = min(limit, max(_UNREAL_S, 3 * self.worker.slowest_s))
        explained = self._run(sourced, first_turn + self.counts.cases, following)
        if self._is_advised(case):
            if self._is_interpreted and not case.fault:
                self.worker.timeout_s = limit
            self._note_advice(case, explained, self.worker.deaths - deaths)
        self.counts.add_case(sourced, shrinking=shrinking)
        self.counts.add_verdict(explained, sourced, shrinking=shrinking)
        if time.monotonic() >= self._report_due:
            self.report()
        return explained.unknown

    def _is_advised(self, case: Case) -> bool:
        """True if no engine makes the case, where such cases fail no candidate."""
        return Kind.CONTRACT not in self.candidate.judged and bool(self.operation.why_unreal(case))

    @property
    def _is_interpreted(self) -> bool:
        return self.candidate.lane == "interpreter"

    def _note_advice(self, case: Case, explained: Explained, deaths: int) -> None:
        """Note what a case of no engine has done to the candidate's process."""
        self._unreal_deaths += deaths
        if case.fault:
            if any(failure.field == LATE for failure in explained.advice):
                self.left_out.setdefault(self._malformed(case), 0)
        elif deaths:
            self.spared.setdefault(self._why_spared(case), 0)

    def _is_left_out(self, case: Case) -> bool:
        """True if the candidate has died of cases of no engine too often to run this one too."""
        if not self._is_advised(case):
            return False
        if self._unreal_deaths >= _MOST_UNREAL_DEATHS or self._why_spared(case) in self.spared:
            return True
        # A hang lasts for the whole timeout, and a check that one value lacks, others lack too.
        return bool(self.left_out) and self._malformed(case) in self.left_out

    def _why_spared(self, case: Case) -> str:
        return "" if case.fault else self.operation.why_unreal(case)

    def _malformed(self, case: Case) -> str:
        """Return the argument that is malformed, several with commas, "" for a well-formed case."""
        if not case.fault:
            return ""
        parameter = alteration_of(self.operation, case).parameter
        return parameter if isinstance(parameter, str) else ", ".join(parameter)

    def _turn(self, number: int) -> tuple[bool, bool]:
        """Return whether the case of that number is called twice, and with other poison."""
        return number % self._share == 0, not self.settings.sparse or number % _SPARSE_SHARE != 0

    def end_process(self) -> bool:
        """End the candidate's process; record what it leaves behind, True if that is new."""
        self.worker.end_process()
        sourced = self._parent or self._last
        if self.worker.survivors and sourced is not None:
            failure = left_behind(self.worker.survivors)
            if failure.root not in self.roots.by_root:
                self.counts.add_verdict(self.explain(sourced.case, (failure,)), sourced)
                self.record(failure, sourced, sourced)
                return True
        return False

    def judge_uncounted(self, sourced: Sourced) -> Explained:
        """Return the verdict on a case without counting it; no failures if it is meaningless."""
        case = sourced.case
        known = self.verdicts.get(case.id)
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
        new = self.roots.new_failures(self.judge_uncounted(sourced).unknown)
        return any(other.root == failure.root for other in new)

    def record(self, failure: Failure, smallest: Sourced, first: Sourced) -> None:
        """Add a root cause with its smallest and its first case."""
        shown = self.verdicts.get(smallest.case.id, Explained((failure,))).unknown
        self.roots.add(failure, smallest, first, shown)
        self.report()

    def report(self) -> None:
        """Tell how far the examination is: its process may be killed before its end."""
        self.reported(self)
        self._report_due = time.monotonic() + _REPORT_S

    def explain(self, case: Case, failures: tuple[Failure, ...]) -> Explained:
        """Divide the failures into unknown ones, known deviations and advice."""
        return explain(self.deviations, case, failures, self.candidate.judged)

    def explain_real(self, case: Case, failures: tuple[Failure, ...]) -> Explained:
        """Return the explained failures, with the classes that they have on the case."""
        return self.explain(case, self.operation.real_kinds(case, failures))

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
        digested = repeated and len(self.digests) * self._share < _FRESH_CASES
        verdict = self.certainty.judge(
            case, digested=digested, repeated=repeated, poisoned=poisoned
        )
        self._last = sourced
        if self.worker.has_children and self._parent is None:
            self._parent = sourced
        explained = self.explain(case, verdict.failures)
        if explained.advice and self._is_interpreted and self._is_advised(case):
            # A kernel that trusts its input has read an address from it, and may have written.
            self.worker.restart_warm()
        self.ledger.settle(case, explained)
        self.counts.add_checks(verdict.checks)
        if len(self.verdicts) < _MOST_VERDICTS:
            self.verdicts[case.id] = explained
        if verdict.digest and not explained.unknown:
            self.digests.append((case, verdict.digest))
        return explained
