"""What a campaign knows of each pair: made of the lines of its ledger, one after another."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from attnproof.harness.campaign.examples import name_of
from attnproof.harness.campaign.joining import (
    Seen,
    add_advice,
    add_deviations,
    add_results,
    size_of,
)
from attnproof.harness.campaign.records import Answer, Line, Pair, Shrunk, TaskEnded
from attnproof.harness.campaign.steering import Growth
from attnproof.harness.model.case import encode
from attnproof.harness.model.run import (
    Cause,
    DeviationResult,
    Finding,
    OperationResult,
    Reason,
)
from attnproof.harness.running.task.root_causes import Root, RootCause
from attnproof.harness.running.task.task import Outcome

_FINAL = (Cause.UNLOADABLE, Cause.DEVIATIONS_FILE, Cause.NOTHING_DRAWN)
"""Causes for which further tasks would have no verdict either."""


@dataclass
class PairState:
    """The tasks of one operation and candidate that have ended, and what they found."""

    ended: set[int] = field(default_factory=set)
    """Numbers of the tasks."""
    lowest: int = 0
    """The lowest number that is not among them."""
    growth: Growth = field(default_factory=Growth)
    result: OperationResult | None = None
    """Counts of all tasks, None before the first has ended."""
    problem: Reason | None = None
    """Why a task has no verdict, None if all have one."""
    known: dict[Root, RootCause] = field(default_factory=dict)
    """Root causes that further tasks need not look at."""
    seen: dict[Root, Seen] = field(default_factory=dict)
    drawn: dict[Root, RootCause] = field(default_factory=dict)
    """Root causes with the cases that were drawn."""
    findings: dict[Root, Finding] = field(default_factory=dict)
    """Findings of shrunk cases."""
    settled: set[str] = field(default_factory=set)
    """Names of the failing cases that belong to a known root cause, or pass alone."""
    passing: set[str] = field(default_factory=set)
    """Names of those that pass alone."""
    advice: dict[Root, Finding] = field(default_factory=dict)
    deviations: dict[str, DeviationResult] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def is_closed(self) -> bool:
        """True if further tasks would tell nothing."""
        if self.problem is not None and self.problem.cause in _FINAL:
            return True
        return self.result is not None and self.result.verdict == "NOT OFFERED"

    def end_task(self, number: int, answer: Answer) -> int:
        """Add the outcome of a task; return the number of pairs of cells that it filled first."""
        outcome = answer.outcome
        result = outcome.result
        self.ended.add(number)
        while self.lowest in self.ended:
            self.lowest += 1
        self.result = add_results(self.result, result) if self.result else result
        if result.verdict == "UNVERIFIED" and self.problem is None:
            self.problem = Reason(result.cause or Cause.TASK_DIED, result.reason, result.log)
        for finding in outcome.findings:
            self.seen.setdefault(finding.root, Seen(finding)).add(finding)
        for root_cause in outcome.root_causes:
            self.drawn.setdefault(root_cause.root, root_cause)
        for advice in outcome.advice:
            old = self.advice.get(advice.root)
            self.advice[advice.root] = add_advice(old, advice) if old else advice
        for deviation in outcome.deviations:
            known = self.deviations.get(deviation.id)
            self.deviations[deviation.id] = add_deviations(known, deviation) if known else deviation
        self.notes.update(dict.fromkeys(outcome.notes))
        self._keep_unrepeated()
        return self.growth.add(result.features, result.seconds)

    def without_known(self, answer: Answer) -> Answer:
        """Return the answer of a task without what the pair has already: it is much, every time."""
        outcome = answer.outcome
        features = self.growth.first(outcome.result.features)
        deviations = [
            msgspec.structs.replace(deviation, shown=None)
            if deviation.id in self.deviations
            and _is_larger(deviation.shown, self.deviations[deviation.id].shown)
            else deviation
            for deviation in outcome.deviations
        ]
        advice = [
            msgspec.structs.replace(finding, outputs=[], log="")
            if finding.root in self.advice and _is_larger(finding, self.advice[finding.root])
            else finding
            for finding in outcome.advice
        ]
        outcome = msgspec.structs.replace(
            outcome,
            result=msgspec.structs.replace(outcome.result, features=features),
            deviations=deviations,
            advice=advice,
        )
        return msgspec.structs.replace(answer, outcome=outcome)

    def shrink(self, line: Shrunk) -> None:
        """Add the root causes of shrunk cases."""
        outcome = line.answer.outcome
        for root_cause in outcome.root_causes:
            self.known[root_cause.root] = root_cause
            self.settled.add(name_of(encode(root_cause.smallest.case)))  # it is in the database too
        findings = {finding.root: finding for finding in outcome.findings}
        whole = outcome.result.cause in (None, Cause.NOTHING_DRAWN)  # of an order that draws none
        self.findings = findings if whole else self.findings | findings
        self.settled.update(line.values)
        self.passing.update(map(name_of, line.answer.passing))
        self._keep_unrepeated()

    def _keep_unrepeated(self) -> None:
        """Take a failure that does not occur alone for known, with the case as it was drawn."""
        for root, root_cause in self.drawn.items():
            if root not in self.known and name_of(encode(root_cause.smallest.case)) in self.passing:
                self.known[root] = root_cause

    def unsettled(self, values: list[bytes]) -> list[bytes]:
        """Return those of the failing cases that are not shrunk yet."""
        return [value for value in values if name_of(value) not in self.settled]

    def outcome(self, operation: str, section: str, candidate: str, device: str) -> Outcome:
        """Return the outcome of all tasks together."""
        result = self.result or OperationResult(
            name=operation,
            section=section,
            candidate=candidate,
            device=device,
            verdict="UNVERIFIED",
            reason="no task has ended",
            cause=Cause.INTERRUPTED,
        )
        findings = self._findings(result)
        if findings:
            result = msgspec.structs.replace(result, verdict="FAIL", reason="", cause=None)
        elif self.problem is not None:
            cause, reason, log = msgspec.structs.astuple(self.problem)
            result = msgspec.structs.replace(
                result, verdict="UNVERIFIED", reason=reason, cause=cause, log=log
            )
        elif self.deviations and result.known:
            result = msgspec.structs.replace(result, verdict="DEVIATES")
        advice = [finding for root, finding in self.advice.items() if root not in self.findings]
        result = msgspec.structs.replace(result, advice=len(advice))
        deviations = list(self.deviations.values())
        return Outcome(result, findings, advice, deviations, list(self.notes))

    def _findings(self, result: OperationResult) -> list[Finding]:
        """Return the shrunk findings, and those that could not be shrunk as they were drawn."""
        findings = dict(self.findings)
        for root, root_cause in self.drawn.items():
            name = name_of(encode(root_cause.smallest.case))
            if root in self.seen and (name not in self.settled or name in self.passing):
                findings.setdefault(root, self.seen[root].first)
        return [
            self.seen[root].told_of(finding, result.origins) if root in self.seen else finding
            for root, finding in findings.items()
        ]


def _is_larger(finding: Finding | None, other: Finding | None) -> bool:
    """True if the second finding would be shown of two."""
    return other is not None and (finding is None or size_of(finding) >= size_of(other))


@dataclass
class CampaignState:
    """All pairs of a campaign, and the time that it has worked."""

    pairs: dict[Pair, PairState]
    worked_s: float = 0.0
    tasks: int = 0
    cases: int = 0

    def add(self, line: Line) -> int:
        """Add a line of the ledger; return the number of pairs of cells its task filled first."""
        if not isinstance(line, TaskEnded | Shrunk):
            return 0
        self.worked_s = max(self.worked_s, line.at)
        state = self.pairs[line.pair]
        if isinstance(line, Shrunk):
            state.shrink(line)
            return 0
        self.tasks += 1
        self.cases += line.answer.outcome.result.cases
        return state.end_task(line.number, line.answer)

    @property
    def num_root_causes(self) -> int:
        """Number of root causes."""
        return sum(len(state.known) for state in self.pairs.values())
