"""summary.md: the run in one screen, for a CI job summary or a pull-request comment."""

from __future__ import annotations

import re
from collections import Counter

from attnproof.harness.model.run import DeviationResult, Finding, Run, Verdict
from attnproof.harness.report.formats.performance_markdown import performance_parts
from attnproof.harness.report.pictures.sequence_input import input_size
from attnproof.harness.report.shared.wording import (
    GLYPHS,
    NO_REASON,
    STATE_WORDS,
    STATES,
    clean,
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
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!@&$])")


def markdown_text(run: Run) -> str:
    """Return verdict, counts, a table of candidates, and findings with their replay commands."""
    parts = [
        f"## {GLYPHS[run.verdict]} attnproof: {run.verdict}",
        _escape(counts_sentence(run)),
    ]
    if run.reason:
        parts.append(f"**{reason_label(run)}:** {_escape(run.reason)}")
    if run.operations:
        parts.append(_candidates(run))
    parts += [_finding(n, finding) for n, finding in enumerate(run.findings[:_FINDINGS], 1)]
    if len(run.findings) > _FINDINGS:
        parts.append(f"{many(len(run.findings) - _FINDINGS, 'more finding')}: see index.html.")
    if run.bench:
        parts += performance_parts(run.bench, _escape)
    if run.deviations:
        parts.append(_deviations(run.deviations))
    if skips := _skips(run):
        parts.append(skips)
    environment = run.environment
    parts.append(
        f"Commit {_code(environment.commit or 'unknown')}, seed {_code(str(run.seed))}, "
        f"{_escape(device_words(run))}, Python {_escape(environment.python)}, "
        f"torch {_escape(environment.torch)}. Details: index.html."
    )
    return "\n\n".join(parts) + "\n"


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
        lines.append(f"| {_escape(candidate)} | {_escape(device)} | {cells} |")
    return "\n".join(lines)


def _finding(number: int, finding: Finding) -> str:
    return "\n".join(
        [
            f"**F{number}. {_escape(shorten(finding.diagnosis, 300))}**  ",
            f"{_code(finding.operation)} of {_code(finding.candidate)} ({_escape(finding.device)}),"
            f" {_escape(finding.oracle)} oracle, field {_code(finding.field)},"
            f" {_escape(shorten(input_size(finding), 300))}:"
            f" expected {_code(shorten(finding.expected, 120))},"
            f" got {_code(shorten(finding.got, 120))}.",
            "",
            _fenced(finding.command),
        ]
    )


def _deviations(deviations: list[DeviationResult]) -> str:
    """Return the known deviations; stale ones first, as their entries need an edit."""
    ordered = sorted(deviations, key=lambda deviation: not deviation.stale)
    lines = [f"- {_deviation(deviation)}" for deviation in ordered[:_DEVIATIONS]]
    if len(ordered) > _DEVIATIONS:
        lines.append(f"- {len(ordered) - _DEVIATIONS:,} more: see index.html")
    return "\n".join(["Known deviations:", "", *lines])


def _deviation(deviation: DeviationResult) -> str:
    about = f"{_escape(deviation.id)} {_escape(shorten(deviation.title, 200))}"
    where = f"{_code(deviation.operation)} of {_code(deviation.candidate)}"
    if deviation.stale:
        return f"**stale** {about}: {where}, no case shows it any more"
    return f"{about}: {where}, {many(deviation.cases, 'case')}"


def _skips(run: Run) -> str:
    """Return the reasons of operations without a verdict, each with its operations."""
    reasons: dict[str, list[str]] = {}
    for result in run.operations:
        if result.verdict == "UNVERIFIED":
            name = f"{_code(result.name)} of {_code(result.candidate)}"
            reasons.setdefault(result.reason or NO_REASON, []).append(name)
    lines = [f"- {_escape(reason)}: {listed(names, 3)}" for reason, names in reasons.items()]
    if len(lines) > _REASONS:
        lines = [*lines[:_REASONS], f"- {many(len(lines) - _REASONS, 'more reason')}"]
    return "\n".join(["Unverified:", "", *lines]) if lines else ""


def _escape(text: str) -> str:
    """Return the text on one line, with Markdown's special characters escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))


def _code(text: str) -> str:
    """Return inline code; not for tables, where a bar would end the cell."""
    text = " ".join(clean(text).split())
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}" if text else "(empty)"


def _fenced(text: str) -> str:
    text = clean(text)
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks}sh\n{text}\n{ticks}"
