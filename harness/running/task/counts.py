"""The cases and verdicts of an examination in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from attnproof.harness.cases.coverage.features import cells_of
from attnproof.harness.model.case import REAL, Origin, Sourced
from attnproof.harness.model.verdict import ORACLES, Failure
from attnproof.harness.running.task.deviations import Explained
from attnproof.harness.running.task.occurrences import Occurrence, Tally, count_occurrences
from attnproof.harness.running.task.root_causes import Root


@dataclass
class Counts:
    """Cases by origin and by what they show; each case is counted once."""

    origins: Counter[Origin] = field(default_factory=Counter)
    features: dict[Origin, Counter[int]] = field(default_factory=dict)
    """Well-formed cases by origin and by the cells that they fill."""
    steps: Counter[str] = field(default_factory=Counter)
    """Steps of well-formed cases by name."""
    shrinking: int = 0
    """Drawn cases that were tried while another one was shrunk."""
    failed: int = 0
    """Cases with a failure that fails the candidate."""
    failed_by_root: Counter[Root] = field(default_factory=Counter)
    """Failed cases, with those of shrinking."""
    tally_by_root: dict[Root, Tally] = field(default_factory=dict)
    """Failed cases, without those of shrinking."""
    known: set[str] = field(default_factory=set)
    """Ids of the cases whose failures are all known deviations."""
    occurred: dict[str, Occurrence] = field(default_factory=dict)
    """Occurrences of known deviations, by id of the deviation."""
    advised: dict[Root, Occurrence] = field(default_factory=dict)
    """Occurrences of failures of other classes, by root cause."""
    accepted: list[Sourced] = field(default_factory=list)
    """Well-formed cases without a failure of any class, those of shrinking not included."""
    checks: list[int] = field(default_factory=lambda: [0] * len(ORACLES))
    failures_by_oracle: Counter[str] = field(default_factory=Counter)
    known_by_oracle: Counter[str] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        """Distinct cases counted so far."""
        return self.origins.total() + self.shrinking

    def tested_cells(self) -> set[int]:
        """Return the cells of each test: of each case that is no engine step."""
        tests = (origin for origin in self.features if origin not in REAL)
        return {cells for origin in tests for cells in self.features[origin]}

    def add_case(self, sourced: Sourced, *, shrinking: bool = False) -> None:
        """Count a case."""
        if shrinking:
            self.shrinking += 1
            return
        self.origins[sourced.origin] += 1
        if not sourced.case.fault:
            self.features.setdefault(sourced.origin, Counter())[cells_of(sourced.case)] += 1
            steps = sourced.case.params.get("steps", ())
            self.steps.update(step["do"] for step in steps if isinstance(step, dict))

    def add_checks(self, checks: tuple[int, ...]) -> None:
        """Add the checks of a case, one number for each oracle."""
        for oracle, count in enumerate(checks):
            self.checks[oracle] += count

    def withdraw(self, failures: tuple[Failure, ...]) -> None:
        """Take back a failed case, if nothing shows its failures again."""
        self.failed -= 1
        self.failures_by_oracle -= Counter({failure.oracle for failure in failures})

    def add_verdict(
        self, explained: Explained, sourced: Sourced, *, shrinking: bool = False
    ) -> None:
        """Count what a case shows."""
        failures = explained.unknown
        if failures:
            self.failed += 1
        elif explained.known and not shrinking:
            self.known.add(sourced.case.id)
        elif not (explained.advice or sourced.case.fault or shrinking):
            self.accepted.append(sourced)
        self.failed_by_root.update({failure.root for failure in failures})
        objecting = {failure.oracle for failure in failures}
        self.failures_by_oracle.update(objecting)
        self.known_by_oracle.update({f.oracle for _, f in explained.known} - objecting)
        if shrinking:
            return
        for root in {failure.root for failure in failures}:
            tally = self.tally_by_root.setdefault(root, Tally())
            tally.add(sourced, [failure for failure in failures if failure.root == root])
        known = [(deviation.id, failure) for deviation, failure in explained.known]
        count_occurrences(self.occurred, known, sourced, failures)
        advice = [(failure.root, failure) for failure in explained.advice]
        beside = (*failures, *(failure for _, failure in explained.known), *explained.advice)
        count_occurrences(self.advised, advice, sourced, beside)
