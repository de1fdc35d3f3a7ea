"""summary.md: the run in one screen, for a CI job summary or a pull-request comment."""

from __future__ import annotations

from collections import Counter
from functools import partial

from attnproof.harness.escaping import escape_line, markdown_block, markdown_code, markdown_text
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import DeviationResult, Run, Verdict
from attnproof.harness.report.formats.performance_markdown import performance_parts
from attnproof.harness.report.pictures.sequence_input import input_size
from attnproof.harness.report.shared.comparison import base_lines
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.finding_text import FindingText, advice_counts
from attnproof.harness.report.shared.wording import (
    GLYPHS,
    NO_REASON,
    STATE_WORDS,
    STATES,
    counts_sentence,
    device_words,
    listed,
    many,
    reason_label,
    shorten,
)

_FINDINGS = 10
_REASONS = 10
_DEVIATIONS = 10


def run_markdown(run: Run) -> str:
    """Return verdict, counts, a table of candidates, and findings with their replay commands."""
    parts = [
        f"## {GLYPHS[run.verdict]} attnproof: {run.verdict}",
        attempt("the counts", lambda: markdown_text(counts_sentence(run)), markdown_text),
    ]
    if run.base is not None:
        parts.append(attempt("the comparison", lambda: _base(run), markdown_text))
    if run.reason:
        parts.append(f"**{reason_label(run)}:** {markdown_text(run.reason)}")
    if run.operations:
        parts.append(attempt("the table of candidates", lambda: _candidates(run), markdown_text))
    for number, finding in enumerate(run.findings[:_FINDINGS], 1):
        make = partial(_finding, number, FindingText(finding, run.base))
        parts.append(attempt(f"the text of finding F{number}", make, markdown_text))
    if len(run.findings) > _FINDINGS:
        parts.append(f"{many(len(run.findings) - _FINDINGS, 'more finding')}: see index.html.")
    if run.advice:
        advice = attempt("the advice", lambda: advice_counts(run.advice), str)
        parts.append(markdown_text(f"Advice, which fails no candidate: {advice}."))
    if run.bench:
        make_parts = partial(performance_parts, run.bench, markdown_text)
        parts += attempt("the performance", make_parts, lambda fault: [markdown_text(fault)])
    if run.deviations:
        make = partial(_deviations, run.deviations)
        parts.append(attempt("the known deviations", make, markdown_text))
    if skips := attempt("the reasons of missing verdicts", lambda: _skips(run), markdown_text):
        parts.append(skips)
    parts.append(attempt("the last line", lambda: _machine(run), markdown_text))
    return "\n\n".join(parts) + "\n"


def _machine(run: Run) -> str:
    environment = run.environment
    return (
        f"Commit {markdown_code(environment.commit or 'unknown')}, "
        f"seed {markdown_code(run.seed)}, "
        f"{markdown_text(device_words(run))}, Python {markdown_text(environment.python)}, "
        f"torch {markdown_text(environment.torch)}. Details: index.html."
    )


def _candidates(run: Run) -> str:
    """Return one row per candidate and device, one column per state."""
    rows: dict[tuple[str, str], Counter[Verdict]] = {}
    for result in run.operations:
        rows.setdefault((result.candidate, result.device), Counter())[result.verdict] += 1
    lines = [
        "| candidate | device | "
        + " | ".join(f"{GLYPHS[state]} {STATE_WORDS[state]}" for state in STATES)
        + " |",
        "|---|---|" + "---:|" * len(STATES),
    ]
    for (candidate, device), count in rows.items():
        cells = " | ".join(f"{count[state]:,}" for state in STATES)
        lines.append(f"| {markdown_text(candidate)} | {markdown_text(device)} | {cells} |")
    return "\n".join(lines)


def _base(run: Run) -> str:
    """Return the number of new findings, and what else changed since the base run."""
    return "\n\n".join(markdown_text(line) for line in base_lines(run))


def _finding(number: int, text: FindingText) -> str:
    finding, inline = text.finding, text.inline_replay()
    lines = [
        f"**F{number}. {text.if_new('new: ')}{markdown_text(shorten(finding.diagnosis, 300))}**  ",
        f"{markdown_code(finding.operation)} of {markdown_code(finding.candidate)}"
        f" ({markdown_text(finding.device)}),"
        f" {markdown_text(finding.kind)},"
        f" {markdown_text(finding.oracle)} oracle, field {markdown_code(finding.field)},"
        f" {markdown_text(shorten(input_size(finding), 300))}:"
        f" expected {markdown_code(shorten(finding.expected, 120))},"
        f" got {markdown_code(shorten(finding.got, 120))}."
        f" Shown by {markdown_text(text.evidence())}. {markdown_text(consequence(finding))}",
        "",
        markdown_block(escape_line(finding.command), "sh"),
    ]
    if inline:
        lines += ["", "Without the files of the report:", "", markdown_block(inline, "sh")]
    return "\n".join(lines)


def _deviations(deviations: list[DeviationResult]) -> str:
    """Return the known deviations; stale ones first, as their entries need an edit."""
    ordered = sorted(deviations, key=lambda deviation: not deviation.stale)
    lines = [f"- {_deviation(deviation)}" for deviation in ordered[:_DEVIATIONS]]
    if len(ordered) > _DEVIATIONS:
        lines.append(f"- {len(ordered) - _DEVIATIONS:,} more: see index.html")
    return "\n".join(["Known deviations:", "", *lines])


def _deviation(deviation: DeviationResult) -> str:
    about = f"{markdown_text(deviation.id)} {markdown_text(shorten(deviation.title, 200))}"
    where = f"{markdown_code(deviation.operation)} of {markdown_code(deviation.candidate)}"
    if deviation.stale:
        return f"**stale** {about}: {where}, no case shows it any more"
    return f"{about}: {where}, {many(deviation.cases, 'case')}"


def _skips(run: Run) -> str:
    """Return the reasons of operations without a verdict, each with its operations."""
    reasons: dict[str, list[str]] = {}
    for result in run.operations:
        if result.verdict == "UNVERIFIED":
            name = f"{markdown_code(result.name)} of {markdown_code(result.candidate)}"
            reasons.setdefault(result.reason or NO_REASON, []).append(name)
    lines = [f"- {markdown_text(reason)}: {listed(names, 3)}" for reason, names in reasons.items()]
    if len(lines) > _REASONS:
        lines = [*lines[:_REASONS], f"- {many(len(lines) - _REASONS, 'more reason')}"]
    return "\n".join(["Unverified:", "", *lines]) if lines else ""
