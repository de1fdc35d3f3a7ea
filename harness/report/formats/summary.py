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
    DeviationResult,
    Environment,
    Evidence,
    Finding,
    OperationResult,
    Run,
    RunVerdict,
    Verdict,
)
from attnproof.harness.model.strength import OperationScore, Recall, Strength
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.formats.coverage_summary import (
    SummaryCoverage,
    summarize_coverage,
)
from attnproof.harness.report.formats.performance_summary import (
    SummaryPerformance,
    summarize_performance,
)
from attnproof.harness.report.pictures.sequence_input import step_count
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.files import replace_file

_MADE = ("steps", "consequence")
"""Fields of a summary's finding that are made from others."""


class SummaryOperation(msgspec.Struct, kw_only=True):
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


class SummaryFinding(msgspec.Struct, kw_only=True):
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


class SummaryDeviation(msgspec.Struct, kw_only=True):
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


class SummaryMutants(msgspec.Struct, kw_only=True):
    """The result of `attnproof mutants`."""

    path: str
    """File with all mutants."""
    candidate: str
    score: float
    operations: list[OperationScore]
    survivors: int
    """Changes that no case of any operation noticed."""


class SummaryStrength(msgspec.Struct, kw_only=True):
    """Strength of the checks, from files that were there when the run began."""

    mutants: SummaryMutants | None
    """Null without a file of `attnproof mutants`."""
    recall: Recall | None
    """Null without a file of `attnproof strength`."""


class Summary(msgspec.Struct, kw_only=True):
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
    return Summary(
        schema="attnproof.summary/1",
        verdict=run.verdict,
        reason=run.reason,
        seed=run.seed,
        started=run.started,
        seconds=run.seconds,
        command=run.command,
        environment=run.environment,
        settings=run.settings,
        counts=run.counts,
        operations=[_operation(result) for result in run.operations],
        findings=[_finding(finding) for finding in run.findings],
        advice=[_finding(finding) for finding in run.advice],
        deviations=[_deviation(deviation) for deviation in run.deviations],
        notes=run.notes,
        performance=attempt(
            "the performance", lambda: summarize_performance(run.bench), lambda _fault: None
        ),
        coverage=attempt(
            "the coverage", lambda: summarize_coverage(run.operations), lambda _fault: None
        ),
        strength=_strength(run.strength),
        base=run.base,
    )


def summary_bytes(run: Run) -> bytes:
    """Return summary.json, indented, ending in a line feed."""
    tree = escape_tree(msgspec.to_builtins(summarize(run), enc_hook=str))
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


def write_summary(run: Run, path: Path) -> None:
    """Write summary.json to `path` in one step."""
    replace_file(path, summary_bytes(run))


def _operation(result: OperationResult) -> SummaryOperation:
    return SummaryOperation(
        **{name: getattr(result, name) for name in SummaryOperation.__struct_fields__}
    )


def _strength(strength: Strength) -> SummaryStrength:
    made = strength.mutants
    if made is None:
        return SummaryStrength(mutants=None, recall=strength.recall)
    mutants = SummaryMutants(
        path=made.path,
        candidate=made.candidate,
        score=made.score,
        operations=made.operations,
        survivors=len(made.survivors),
    )
    return SummaryStrength(mutants=mutants, recall=strength.recall)


def _deviation(deviation: DeviationResult) -> SummaryDeviation:
    return SummaryDeviation(
        **{name: getattr(deviation, name) for name in SummaryDeviation.__struct_fields__}
    )


def _finding(finding: Finding) -> SummaryFinding:
    names = SummaryFinding.__struct_fields__
    fields = {name: getattr(finding, name) for name in names if name not in _MADE}
    steps = attempt("the number of steps", lambda: step_count(finding), lambda _fault: 0)
    effect = attempt("the consequence", lambda: consequence(finding), lambda _fault: "")
    return SummaryFinding(**fields, steps=steps, consequence=effect)
