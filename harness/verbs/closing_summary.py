"""The end of the output of `verify`: findings, known deviations, missing operations, verdict."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attnproof.harness.documents import page_address
from attnproof.harness.escaping import escape_line
from attnproof.harness.guard import attempt
from attnproof.harness.model.comparison import Comparison
from attnproof.harness.model.run import (
    EXPECTED,
    FAULTS,
    Cause,
    DeviationResult,
    Finding,
    OperationResult,
    Run,
)
from attnproof.harness.report.shared.comparison import base_lines
from attnproof.harness.report.shared.consequences import sentences
from attnproof.harness.report.shared.deviations import deviation_line
from attnproof.harness.report.shared.diagnoses import entry_of
from attnproof.harness.report.shared.finding_text import FindingText, advice_counts
from attnproof.harness.report.shared.wording import many
from attnproof.harness.running.own_operations import own_names, sources_in_use


def closing_summary(record: Run, place: Path, *, quiet: bool = False) -> str:
    """Return the closing lines; the verdict is the last line but one.

    `place` is the folder of the report. `quiet` keeps the findings and the verdict only.
    """
    lines = [line for finding in record.findings for line in _finding(finding, record.base)]
    lines += attempt("the faults", lambda: list(_faults(record.operations)), lambda f: [f])
    if quiet:
        return "\n".join(map(escape_line, [*lines, _verdict(record)]))
    if record.advice:
        advice = attempt("the advice", lambda: advice_counts(record.advice), str)
        lines.append(f"ADVICE {advice} (fails no candidate): {place / 'index.html'}#advice")
    for deviation in record.deviations:
        make = partial(deviation_line, deviation)
        lines.append(attempt(f"the line on {deviation.id}", make, str))
    lines += attempt("the steps", lambda: list(_steps(record.operations)), lambda f: [f])
    lines += attempt(
        "the missing operations", lambda: list(_not_offered(record.operations)), lambda f: [f]
    )
    lines += attempt("the comparison", lambda: base_lines(record), lambda fault: [fault])
    lines.append(_verdict(record))
    lines.append(f"report: {place / 'index.html'}")
    return "\n".join(map(escape_line, lines))


def _verdict(record: Run) -> str:
    why = f" ({record.reason})" if record.reason else ""
    counts = attempt("the counts", lambda: _counts(record), lambda _fault: "counts unknown")
    return f"{record.verdict}{why}: {counts}, seed {record.seed}, {record.seconds:.0f} s"


def _counts(record: Run) -> str:
    counts = record.counts
    advice = f"{len(record.advice)} advice, " if record.advice else ""
    return (
        f"{many(counts.cases, 'case')}, {many(counts.checks, 'check')}, "
        f"{many(len(record.findings), 'finding')}, {advice}{_known_counts(record.deviations)}"
        f"{counts.unverified} unverified"
    )


def _finding(finding: Finding, base: Comparison | None) -> list[str]:
    text = FindingText(finding, base)
    new = attempt("the comparison", lambda: text.if_new("NEW "), lambda _fault: "")
    head = f"{new}{finding.operation} [{finding.candidate}] ({finding.kind}): {finding.diagnosis}"
    message = [f"    {finding.message}"] if finding.has_known_mistake else []
    shown = attempt("the evidence", lambda: _evidence(text), lambda fault: [f"    {fault}"])
    if len(finding.fields) > 1:
        message.append(f"    wrong in all: {', '.join(finding.fields)}")
    also = [f"    also fails because of it: {', '.join(finding.also)}"] if finding.also else []
    page = attempt("the page on the diagnosis", lambda: _page(finding), str)
    what_to_do = [f"    {page}"] if page else []
    return [head, *message, *shown, *what_to_do, *also, f"    {finding.command}"]


def _evidence(text: FindingText) -> list[str]:
    """Return the counts with the consequence, and a line for each further sentence."""
    effect, *others = sentences(text.finding)
    first = f"    shown by {text.evidence()}. {effect}".rstrip()
    return [first, *(f"    {sentence}" for sentence in others if sentence)]


def _page(finding: Finding) -> str:
    """Return the address of the text on the diagnosis, "" without one."""
    meaning = entry_of(finding.diagnosis, finding.oracle)
    return page_address("diagnoses", meaning.id) if meaning else ""


def _known_counts(deviations: list[DeviationResult]) -> str:
    """Return the counts, each followed by a comma, such as "2 known deviations, "; "" for none."""
    stale = sum(deviation.stale for deviation in deviations)
    known = len(deviations) - stale
    text = f"{many(known, 'known deviation')}, " if known else ""
    return text + (f"{many(stale, 'stale deviation')}, " if stale else "")


_WHOSE = {Cause.MACHINE: "MACHINE", Cause.REFERENCE_FAILED: "REFERENCE"}


def _faults(results: list[OperationResult]) -> Iterator[str]:
    """Yield a line on each fault of the harness or the machine: it is no candidate's."""
    for result in results:
        if result.cause in FAULTS:
            whose = _WHOSE.get(result.cause, "HARNESS")
            log = "; its traceback is in summary.json" if result.log else ""
            yield (
                f"FAULT OF THE {whose} {result.name} [{result.candidate}]: {result.reason}; "
                f"the candidate was judged on {many(result.cases, 'case')} before it{log}"
            )


def _steps(results: list[OperationResult]) -> Iterator[str]:
    """Yield a line on each class of a user: a method with few steps is hardly tested."""
    for result in results:
        if result.steps:
            counts = ", ".join(f"{name} {count:,}" for name, count in result.steps.items())
            none = [name for name, count in result.steps.items() if not count]
            # A run that was cut short may not have come to them.
            is_known = none and result.verdict in ("PASS", "FAIL")
            refused = f"; the reference refuses each {' and '.join(none)}" if is_known else ""
            yield f"STEPS {result.name} [{result.candidate}]: {counts}{refused}"


def _not_offered(results: list[OperationResult]) -> Iterator[str]:
    """Yield one line per candidate that does not offer all operations.

    A candidate for operations of `--operations` need not offer one of ours.
    """
    own = own_names() if sources_in_use() else set[str]()
    for candidate in dict.fromkeys(result.candidate for result in results):
        asked = {result.name: result for result in results if result.candidate == candidate}
        missing = [name for name, result in asked.items() if _is_missing(result)]
        mine, ours = [name for name in missing if name in own], asked.keys() - own
        count = f"{len(missing) - len(mine)} of {len(ours)} operations"
        if own and (mine or ours - {*missing}):
            yield f"NOT OFFERED by {candidate}: {', '.join([*mine, count])} of attnproof"
        elif missing and not own:
            lists = "`attnproof list --candidate ...` lists them"
            yield f"NOT OFFERED {count} by {candidate}: {lists}"


def _is_missing(result: OperationResult) -> bool:
    return result.verdict == "NOT OFFERED" and result.cause not in EXPECTED
