"""summary.json: the run for programs; summary.schema.json describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from attnproof.harness.escaping import escape_tree
from attnproof.harness.guard import attempt
from attnproof.harness.model.comparison import Comparison
from attnproof.harness.model.run import (
    Counts,
    Environment,
    Evidence,
    Finding,
    Run,
    RunVerdict,
    Verdict,
)
from attnproof.harness.model.strength import OperationScore, Recall, Strength
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.formats.coverage_summary import SummaryCoverage, summarize_coverage
from attnproof.harness.report.formats.performance_summary import (
    SummaryPerformance,
    summarize_performance,
)
from attnproof.harness.report.formats.summary_part import SummaryPart
from attnproof.harness.report.pictures.sequence_input import step_count
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.files import indented_json, replace_file


class SummaryOperation(SummaryPart, kw_only=True):
    """The verdict on one operation of one candidate."""

    name: str
    candidate: str
    device: str
    verdict: Verdict
    cases: int
    checks: int
    advice: int
    """Findings that do not fail the candidate."""
    reason: str
    """Reason of the verdict UNVERIFIED or NOT OFFERED, or of an end before the last case."""
    causes: tuple[str, ...]
    """Oracle, place and class of all that is wrong in some case; a finding shows some of them."""
    log: str = ""
    """Traceback of a fault of the harness, "" without one."""


class SummaryFinding(SummaryPart, kw_only=True):
    """One root cause."""

    id: str
    operation: str
    candidate: str
    device: str
    oracle: str
    kind: Kind
    """Class of the finding."""
    field: str
    fields: tuple[str, ...]
    """All fields that are wrong by the same root cause."""
    cause: str
    """Oracle, place and class: equal in each run of the same code."""
    diagnosis: str
    message: str
    case_id: str
    case_path: str
    """Relative to the folder of summary.json."""
    requests: int
    tokens: int
    steps: int
    """Number of steps of a sequence, 0 for other operations."""
    failed_cases: int
    evidence: dict[str, Evidence]
    """Cases that show it, by origin."""
    unreal: str
    """Why no engine makes the smallest case, "" if one may."""
    consequence: str
    """Consequence of the mistake for an engine, a sentence; "" without one."""
    also: tuple[str, ...]
    """Other operations that fail because of it."""
    expected: str
    got: str
    command: str


class SummaryDeviation(SummaryPart, kw_only=True):
    """One known deviation on one operation of one candidate."""

    id: str
    title: str
    reference: str
    since: str
    operation: str
    candidate: str
    version: str
    """Version of the candidate's package, "" if unknown."""
    stale: bool
    """True if a complete run had no case that shows it."""
    cases: int
    kinds: tuple[Kind, ...]
    """Classes of its failures."""
    evidence: dict[str, Evidence]
    """Cases that show it, by origin."""
    oracles: tuple[str, ...]
    fields: tuple[str, ...]
    message: str
    case_path: str
    """Smallest case that shows it, relative to the folder of summary.json; "" if stale."""
    command: str


class SummaryMutants(SummaryPart, kw_only=True):
    """The result of `attnproof mutants`."""

    path: str
    """File with all mutants."""
    candidate: str
    score: float
    operations: list[OperationScore]
    survivors: int
    """Changes that no case of any operation noticed."""


class SummaryStrength(SummaryPart, kw_only=True):
    """Strength of the checks, from files that were there when the run began."""

    mutants: SummaryMutants | None
    """Null without a file of `attnproof mutants`."""
    recall: Recall | None
    """Null without a file of `attnproof strength`."""


class Summary(SummaryPart, kw_only=True):
    """The result of one invocation of `attnproof verify` or `attnproof bench`."""

    schema: Literal["attnproof.summary/1"]
    verdict: RunVerdict
    reason: str
    """Reason of the verdict INCOMPLETE or SLOWER, "" otherwise."""
    seed: int
    started: str
    """ISO 8601, UTC."""
    seconds: float
    command: str
    environment: Environment
    settings: dict[str, Any]
    counts: Counts
    operations: list[SummaryOperation]
    findings: list[SummaryFinding]
    advice: list[SummaryFinding]
    """Findings of classes that do not fail their candidates."""
    deviations: list[SummaryDeviation]
    notes: list[str]
    """Parts that the run left out, with reasons."""
    performance: SummaryPerformance | None
    """Null if nothing was timed."""
    coverage: SummaryCoverage | None
    """Null if no case was run."""
    strength: SummaryStrength
    base: Comparison | None
    """Null without `--base`."""


def summarize(run: Run) -> Summary:
    """Return the part of a run that summary.json holds."""
    return Summary.of(
        run,
        schema="attnproof.summary/1",
        operations=[SummaryOperation.of(result) for result in run.operations],
        findings=[_finding(finding) for finding in run.findings],
        advice=[_finding(finding) for finding in run.advice],
        deviations=[SummaryDeviation.of(deviation) for deviation in run.deviations],
        performance=attempt(
            "the performance", lambda: summarize_performance(run.bench), lambda _fault: None
        ),
        coverage=attempt(
            "the coverage", lambda: summarize_coverage(run.operations), lambda _fault: None
        ),
        strength=_strength(run.strength),
    )


def summary_bytes(run: Run) -> bytes:
    """Return summary.json, indented, ending in a line feed."""
    return indented_json(escape_tree(msgspec.to_builtins(summarize(run), enc_hook=str)))


def write_summary(run: Run, path: Path) -> None:
    """Write summary.json to `path` in one step."""
    replace_file(path, summary_bytes(run))


def _strength(strength: Strength) -> SummaryStrength:
    score = strength.mutants
    mutants = SummaryMutants.of(score, survivors=len(score.survivors)) if score else None
    return SummaryStrength.of(strength, mutants=mutants)


def _finding(finding: Finding) -> SummaryFinding:
    steps = attempt("the number of steps", lambda: step_count(finding), lambda _fault: 0)
    effect = attempt("the consequence", lambda: consequence(finding), lambda _fault: "")
    return SummaryFinding.of(finding, steps=steps, consequence=effect)
