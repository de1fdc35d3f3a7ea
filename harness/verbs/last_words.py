"""What `verify` prints at its end: findings, known deviations, what is lacking, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attnproof.harness.model.run import DeviationResult, Finding, OperationResult, Run
from attnproof.harness.report.page.deviations import deviation_line
from attnproof.harness.report.shared.wording import many
from attnproof.harness.running.parent.session import HOST_ONLY


def last_words(record: Run, place: Path) -> str:
    """The end of the output, the verdict in the last line but one."""
    counts = record.counts
    lines = [_finding(finding) for finding in record.findings]
    lines += [deviation_line(deviation) for deviation in record.deviations]
    lines += _not_offered(record.operations)
    why = f" ({record.reason})" if record.reason else ""
    lines.append(
        f"{record.verdict}{why}: {counts.cases:,} cases, {counts.checks:,} checks, "
        f"{len(record.findings)} findings, {_known(record.deviations)}{counts.unverified} "
        f"unverified, seed {record.seed}, {record.seconds:.0f} s"
    )
    lines.append(f"report: {place / 'index.html'}")
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    return (
        f"{finding.operation} [{finding.candidate}]: {finding.diagnosis}\n"
        f"    {finding.message}\n    {finding.command}"
    )


def _known(deviations: list[DeviationResult]) -> str:
    """How many there are, with a comma behind it; "" without any."""
    stale = sum(deviation.stale for deviation in deviations)
    known = len(deviations) - stale
    text = f"{many(known, 'known deviation')}, " if known else ""
    return text + (f"{many(stale, 'stale one')}, " if stale else "")


def _not_offered(results: list[OperationResult]) -> Iterator[str]:
    """A line for each candidate that lacks some of the operations."""
    lacking = Counter(
        result.candidate
        for result in results
        if result.verdict == "NOT OFFERED" and result.reason != HOST_ONLY
    )
    for candidate, count in lacking.items():
        asked = sum(result.candidate == candidate for result in results)
        yield (
            f"NOT OFFERED {count} of {asked} operations by {candidate}: "
            "`attnproof list --candidate ...` names them"
        )
