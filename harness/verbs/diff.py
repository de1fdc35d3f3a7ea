"""`attnproof diff`: compare the findings and the verdicts of two runs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnproof.harness.escaping import escape_tree, markdown_code, markdown_text
from attnproof.harness.model.comparison import Comparison, RunFinding
from attnproof.harness.report.shared.comparison import compare, read_run
from attnproof.harness.report.shared.wording import many
from attnproof.harness.running.errors import INCOMPLETE, MISMATCH, VERIFIED, UsageError
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import DiffOptions

SCHEMA = "attnproof.diff/1"


def diff(options: DiffOptions) -> int:
    """Print the comparison; return the exit code. Raise UsageError if one of the two is no run.

    It is 1 if the newer run has new findings, 3 if it has none but lost a verdict, else 0.
    """
    if options.json and options.markdown:
        raise UsageError("--json and --markdown exclude each other: drop one of them")
    old, new = read_run(options.old), read_run(options.new)
    comparison = compare(old, new, str(options.old))
    if options.json:
        tree = {"schema": SCHEMA, **msgspec.to_builtins(comparison)}
        say(msgspec.json.format(msgspec.json.encode(escape_tree(tree)), indent=2).decode())
    elif options.markdown:
        say("\n".join(_markdown(comparison)))
    else:
        say("\n".join(_lines(comparison)))
    if comparison.new:
        return MISMATCH
    return INCOMPLETE if comparison.lost else VERIFIED


def _groups(comparison: Comparison) -> Iterator[tuple[str, RunFinding, str]]:
    """Yield the state, the finding and a remark on it, new findings first."""
    for finding in comparison.new:
        yield "NEW", finding, finding.command
    for finding in comparison.fixed:
        yield "FIXED", finding, ""
    for gone in comparison.vanished:
        yield "NOT REPORTED", gone.finding, gone.reason
    for finding in comparison.same:
        yield "SAME", finding, ""


def _lines(comparison: Comparison) -> Iterator[str]:
    for state, finding, remark in _groups(comparison):
        where = f"{finding.operation} [{finding.candidate}] ({finding.kind})"
        yield f"{state:<12} {where}: {finding.diagnosis}"
        if state == "NEW":
            yield f"    {finding.message}"
        if remark:
            yield f"    {remark}"
    for words, change in _changes(comparison):
        yield f"{words} {change}"
    for note in comparison.notes:
        yield f"note: {note}"
    yield _counts(comparison)


def _changes(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for row in comparison.lost:
        yield "LOST VERDICT", f"{row.operation} [{row.candidate}] was {row.verdict}: {row.reason}"
    for row in comparison.gained:
        yield "NEW VERDICT ", f"{row.operation} [{row.candidate}] is {row.verdict}: {row.reason}"


def _counts(comparison: Comparison) -> str:
    parts = [
        f"{many(len(comparison.new), 'new finding')}",
        f"{len(comparison.fixed):,} fixed",
        f"{len(comparison.same):,} the same",
    ]
    parts += [f"{len(comparison.vanished):,} not reported"] if comparison.vanished else []
    parts += [f"{many(len(comparison.lost), 'verdict')} lost"] if comparison.lost else []
    parts += [f"{many(len(comparison.gained), 'verdict')} gained"] if comparison.gained else []
    return ", ".join(parts)


def _markdown(comparison: Comparison) -> Iterator[str]:
    yield f"## attnproof: {_counts(comparison)}"
    yield ""
    for state, finding, remark in _groups(comparison):
        where = f"{markdown_code(finding.operation)} of {markdown_code(finding.candidate)}"
        about = f"{markdown_text(finding.diagnosis)} ({markdown_text(finding.kind)})"
        yield f"- **{state.lower()}** {where}: {about}"
        if remark:
            yield f"  {markdown_code(remark)}"
    for words, change in _changes(comparison):
        yield f"- **{words.strip().lower()}** {markdown_text(change)}"
    for note in comparison.notes:
        yield f"- {markdown_text(note)}"
