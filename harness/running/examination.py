"""One operation of one candidate under examination: every case goes through here once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from harness.model.candidate import Candidate
from harness.model.case import Case, Origin, Sourced
from harness.model.operation import Operation
from harness.model.verdict import CONSUMER, ORACLES, Failure
from harness.oracles.determinism import FRESH_PROCESS
from harness.running import interrupt
from harness.running.ledger import Ledger
from harness.running.shrink import shrink
from harness.running.workers import InvalidCaseError, Worker

Root = tuple[str, str]
_FRESH_CASES = 20
_REPORT_EVERY = 25
_MOST_DEATHS = 80
"""Worker deaths after which an operation is not examined further."""
_TRIES, _DEADLY_TRIES = 1500, 30
"""Cases that shrinking may try, fewer when each costs a worker."""
_MEMORY = 20_000
"""Verdicts that are remembered so that shrinking does not ask twice."""


class TooDeadly(BaseException):
    """The candidate has killed so many workers that its verdict needs no more of them."""


@dataclass
class Found:
    """A root cause: the smallest case so far, and the first one."""

    failure: Failure
    smallest: Sourced
    first: Sourced
    groups: frozenset[str]
    """Fields that are wrong in the smallest case."""


@dataclass
class Examination:
    """Asks the worker, counts what it says, remembers what is known to fail."""

    operation: Operation
    candidate: Candidate
    worker: Worker
    ledger: Ledger
    progressed: Callable[[int], None]
    """Told the number of cases now and then."""
    found: dict[Root, Found] = field(default_factory=dict)
    failed_by_root: dict[Root, int] = field(default_factory=dict)
    origins: dict[Origin, int] = field(default_factory=dict)
    failed: int = 0
    checks: list[int] = field(default_factory=lambda: [0] * len(ORACLES))
    failures_by_oracle: dict[str, int] = field(default_factory=dict)
    _verdicts: dict[str, tuple[Failure, ...]] = field(default_factory=dict)
    _digests: list[tuple[Case, str]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """Distinct cases counted so far."""
        return sum(self.origins.values())

    def has_judged(self, case: Case) -> bool:
        """Whether the verdict on the case is known."""
        return case.id in self._verdicts

    def check(self, sourced: Sourced) -> tuple[Failure, ...]:
        """Judge a case and count it; one that was judged before is not run again (TooDeadly)."""
        interrupt.check()
        if self.worker.deaths >= _MOST_DEATHS:
            raise TooDeadly
        case = sourced.case
        if case.id in self._verdicts:
            return self._verdicts[case.id]
        failures = self._run(sourced)
        self.origins[sourced.origin] = self.origins.get(sourced.origin, 0) + 1
        if self.cases % _REPORT_EVERY == 0:
            self.progressed(self.cases)
        if failures:
            self.failed += 1
            for root in {failure.root for failure in failures}:
                self.failed_by_root[root] = self.failed_by_root.get(root, 0) + 1
            for oracle in {failure.oracle for failure in failures}:
                self.failures_by_oracle[oracle] = self.failures_by_oracle.get(oracle, 0) + 1
        return failures

    def still_fails(self, sourced: Sourced, root: Root) -> Failure | None:
        """The failure of that root on a smaller case, None if there is none; not counted."""
        try:
            known = self._verdicts.get(sourced.case.id)
            failures = self._run(sourced) if known is None else known
        except InvalidCaseError:
            return None
        return next((failure for failure in failures if failure.root == root), None)

    def minimise(self, failure: Failure, sourced: Sourced) -> tuple[Failure, Sourced]:
        """The smallest case found that fails by the same root, and how it fails."""
        best = {sourced.case.id: failure}

        def fails(case: Case) -> bool:
            found = self.still_fails(Sourced(case, sourced.origin, sourced.source), failure.root)
            if found is not None:
                best[case.id] = found
            return found is not None

        tries = _DEADLY_TRIES if failure.oracle == "process" else _TRIES
        smallest = shrink(sourced.case, fails, tries)
        return best[smallest.id], Sourced(smallest, sourced.origin, sourced.source)

    def news(self, failures: tuple[Failure, ...]) -> Failure | None:
        """The first failure that no known root cause accounts for.

        A known mistake accounts for what else is wrong in its own smallest case, and
        wrong lengths for wrong bounds, any for what a kernel then sees. Anything beyond
        that is another mistake, though the known one shows in the same case.
        """
        roots = {failure.root for failure in failures}
        present = [found for root, found in self.found.items() if root in roots]
        accounted = {group for found in present for group in found.groups}
        if "lengths" in accounted:
            accounted.add("bounds")
        if present:
            accounted.add(CONSUMER)
        for failure in failures:
            if failure.root not in self.found and failure.group not in accounted:
                return failure
        return None

    def record(self, failure: Failure, smallest: Sourced, first: Sourced) -> None:
        """Make a root cause known."""
        shown = self._verdicts.get(smallest.case.id, (failure,))
        groups = frozenset(other.group for other in (failure, *shown))
        self.found.setdefault(failure.root, Found(failure, smallest, first, groups))

    def repeat_in_fresh_process(self) -> None:
        """Judge some cases again in a new worker, the last first: oracle 6."""
        self.worker.restart()
        for case, digest in reversed(self._digests):
            self.ledger.announce(Sourced(case, "fuzz", "fresh process"))
            verdict = self.worker.judge(case, digested=True)
            self.ledger.settle(case, verdict.failures)
            if verdict.digest != digest:
                got = verdict.failures[0].diagnosis if verdict.failures else verdict.digest
                failure = msgspec.structs.replace(FRESH_PROCESS, expected=digest, got=got)
                self.failed_by_root[failure.root] = self.failed_by_root.get(failure.root, 0) + 1
                self.failures_by_oracle[failure.oracle] = 1
                self.failed += 1
                sourced = Sourced(case, "fuzz", "fresh process")
                self.record(failure, sourced, sourced)
                return

    def _run(self, sourced: Sourced) -> tuple[Failure, ...]:
        case = sourced.case
        self.ledger.announce(sourced)
        wanted = len(self._digests) < _FRESH_CASES
        verdict = self.worker.judge(case, digested=wanted)
        self.ledger.settle(case, verdict.failures)
        self.checks = [a + b for a, b in zip(self.checks, verdict.checks, strict=True)]
        if len(self._verdicts) < _MEMORY:
            self._verdicts[case.id] = verdict.failures
        if verdict.digest and not verdict.failures:
            self._digests.append((case, verdict.digest))
        return verdict.failures
