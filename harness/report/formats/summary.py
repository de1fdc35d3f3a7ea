"""summary.json: the run for machines, described by the committed summary.schema.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from attnproof.harness.model.run import (
    Counts,
    DeviationResult,
    Environment,
    Finding,
    OperationResult,
    Run,
    RunVerdict,
    Verdict,
)
from attnproof.harness.report.formats.performance_summary import (
    SummaryPerformance,
    summarize_performance,
)
from attnproof.harness.report.pictures.sequence_input import step_count
from attnproof.harness.report.shared.files import replace_file
from attnproof.harness.report.shared.wording import clean_tree


class SummaryOperation(msgspec.Struct, kw_only=True):
    """The verdict on one operation of one candidate."""

    name: str
    candidate: str
    device: str
    verdict: Verdict
    cases: int
    checks: int
    reason: str
    """Why the verdict is UNVERIFIED or NOT OFFERED, "" otherwise."""


class SummaryFinding(msgspec.Struct, kw_only=True):
    """One root cause."""

    id: str
    operation: str
    candidate: str
    device: str
    oracle: str
    field: str
    diagnosis: str
    message: str
    case_id: str
    case_path: str
    """Relative to the folder of summary.json."""
    requests: int
    tokens: int
    steps: int
    """Of a sequence, 0 for any other operation."""
    failed_cases: int
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
    """Of the candidate's package, "" if it is not known."""
    stale: bool
    """Whether it should have shown and did not; then there is no case."""
    cases: int
    oracles: tuple[str, ...]
    fields: tuple[str, ...]
    message: str
    case_path: str
    """Of the smallest case that shows it, relative to the folder of summary.json."""
    command: str


class Summary(msgspec.Struct, kw_only=True):
    """What one invocation of `attnproof verify` found out."""

    schema: Literal["attnproof.summary/1"]
    verdict: RunVerdict
    reason: str
    """Why the run is INCOMPLETE, "" otherwise."""
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
    deviations: list[SummaryDeviation]
    notes: list[str]
    """What this run did not look at, and why."""
    performance: SummaryPerformance | None
    """Null if nothing was timed."""


def summarize(run: Run) -> Summary:
    """The part of a run that summary.json holds."""
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
        deviations=[_deviation(deviation) for deviation in run.deviations],
        notes=run.notes,
        performance=summarize_performance(run.bench),
    )


def summary_bytes(run: Run) -> bytes:
    """summary.json, indented, ending in a line feed."""
    tree = clean_tree(msgspec.to_builtins(summarize(run), enc_hook=str))
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


def write_summary(run: Run, path: Path) -> None:
    """Write summary.json to `path`, replacing it in one step."""
    replace_file(path, summary_bytes(run))


def _operation(result: OperationResult) -> SummaryOperation:
    return SummaryOperation(
        **{name: getattr(result, name) for name in SummaryOperation.__struct_fields__}
    )


def _deviation(deviation: DeviationResult) -> SummaryDeviation:
    return SummaryDeviation(
        **{name: getattr(deviation, name) for name in SummaryDeviation.__struct_fields__}
    )


def _finding(finding: Finding) -> SummaryFinding:
    names = SummaryFinding.__struct_fields__
    fields = {name: getattr(finding, name) for name in names if name != "steps"}
    return SummaryFinding(**fields, steps=step_count(finding))
