"""Read the summary of an earlier run, and compare two runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from attnproof.harness.model.comparison import (
    ComparedRun,
    Comparison,
    RunDeviation,
    RunFinding,
    Vanished,
    VerdictChange,
)
from attnproof.harness.model.files import DamagedError, decode_json, read_regular
from attnproof.harness.model.run import Run
from attnproof.harness.report.shared.identity import Identity, identity
from attnproof.harness.report.shared.wording import NO_REASON, capital, listed, many
from attnproof.harness.running.errors import UsageError

SUMMARY = "attnproof.summary/1"
"""Schema of the summaries that are read and written."""
_DEPTHS = {"examples": "drawn cases for each operation", "trace steps": "steps of the traces"}
_COMPARED = ("contract", "interface", "interfaces", "traces", "recordings")
"""Settings that decide on what is a finding, and on the input beside the drawn cases."""


class _Schema(msgspec.Struct):
    schema: str


def read_run(path: Path) -> ComparedRun:
    """Read a run from the folder of its report, or from its summary.json. Raise UsageError."""
    try:
        file = path / "summary.json" if path.is_dir() else path
        if not file.is_file():
            raise UsageError(
                f"{path} is not a run: name the folder of a report, or its summary.json"
            )
        data = read_regular(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error  # NUL in the name
        raise UsageError(f"{path} cannot be read: {reason}") from None
    try:
        schema = decode_json(data, _Schema).schema
    except DamagedError:
        raise UsageError(
            f"{file} is not the summary of a run; name the folder of a report"
        ) from None
    if schema != SUMMARY:
        raise UsageError(
            f"{file} has schema {schema!r}, this version reads {SUMMARY!r}: run verify again"
        )
    try:
        run: ComparedRun = decode_json(data, ComparedRun)
    except DamagedError as error:
        raise UsageError(f"{file} is damaged: {error}; run verify again") from None
    if not all(finding.cause for finding in run.findings):
        raise UsageError(
            f"{file} is of an earlier version, whose findings have no cause to compare by: run "
            "verify again"
        )
    return run


def as_compared(run: Run) -> ComparedRun:
    """Return the part of a run that a comparison needs."""
    return msgspec.convert(run, ComparedRun, from_attributes=True, strict=False)


def compare(old: ComparedRun, new: ComparedRun, name: str) -> Comparison:
    """Compare two runs; `name` is the path of the older one.

    A mistake is wrong in several places, and which of them a finding shows depends on the drawn
    cases: it is new only if no case of the older run showed its cause, and likewise fixed.
    """
    before, after = _by_identity(old.findings), _by_identity(new.findings)
    shown_before, shown_after = _shown(old), _shown(new)
    gone = [finding for key, finding in before.items() if key not in shown_after]
    unproved = [(finding, _why_unproved(finding, old, new)) for finding in gone]
    return Comparison(
        run=name,
        started=old.started,
        commit=old.environment.commit,
        new=[finding for key, finding in after.items() if key not in shown_before],
        fixed=[finding for finding, reason in unproved if not reason],
        same=[finding for key, finding in after.items() if key in shown_before],
        vanished=[Vanished(finding, reason) for finding, reason in unproved if reason],
        lost=_changes(old, new),
        gained=_changes(new, old),
        notes=list(_differences(old, new)),
    )


def is_new(finding: Any, comparison: Comparison | None) -> bool:
    """True if a base run was given and has no such finding."""
    return comparison is not None and identity(finding) in set(map(identity, comparison.new))


def base_lines(run: Run) -> list[str]:
    """Return what changed since the base run: new findings first; none without a base run."""
    base = run.base
    if base is None:
        return []
    parts = [f"{len(base.fixed):,} fixed", f"{len(base.same):,} the same"]
    parts += [f"{len(base.vanished):,} no longer reported"] if base.vanished else []
    new = many(len(base.new), "new finding") if base.new else "no new finding"
    lines = [f"Since the base run {base.run} of {base.started}: {new}, {', '.join(parts)}."]
    for changes, words in ((base.lost, "lost its verdict"), (base.gained, "gained a verdict")):
        if changes:
            names = [f"{change.operation} of {change.candidate}" for change in changes]
            lines.append(f"{capital(words)}: {listed(names, 5)}.")
    return lines + [f"{capital(note)}." for note in base.notes]


def with_base(run: Run, base: ComparedRun, name: str) -> Run:
    """Return the run with its comparison with a base run, new findings first."""
    comparison = compare(base, as_compared(run), name)
    findings = sorted(run.findings, key=lambda finding: not is_new(finding, comparison))
    return msgspec.structs.replace(run, findings=findings, base=comparison)


def _shown(run: ComparedRun) -> set[Identity]:
    """Return the identities of the findings, and of what else some case of the run showed."""
    shown = {Identity(*result.pair, cause) for result in run.operations for cause in result.causes}
    return shown | {identity(finding) for finding in run.findings}


def _by_identity(findings: Iterable[RunFinding]) -> dict[Identity, RunFinding]:
    """Return the findings by identity, the first of each."""
    first_findings: dict[Identity, RunFinding] = {}
    for finding in findings:
        first_findings.setdefault(identity(finding), finding)
    return first_findings


def _why_unproved(finding: RunFinding, old: ComparedRun, new: ComparedRun) -> str:
    """Return why a finding that is gone need not be fixed, "" if it is."""
    results = {result.pair: result for result in new.operations}
    result = results.get(finding.pair)
    if result is None:
        return "the operation is not part of the newer run"
    if not result.is_judged:
        return f"{result.verdict}: {result.reason or NO_REASON}"
    before = {d.id for d in old.deviations if _explains(d, finding)}
    known = [d.id for d in new.deviations if _explains(d, finding) and d.id not in before]
    return f"now a known deviation: {', '.join(known)}" if known else ""


def _explains(deviation: RunDeviation, finding: RunFinding) -> bool:
    """True if a known deviation that occurred may be this finding."""
    return (
        not deviation.stale
        and (deviation.operation, deviation.candidate) == finding.pair
        and finding.oracle in deviation.oracles
        and finding.kind in deviation.kinds
    )


def _changes(judged: ComparedRun, other: ComparedRun) -> list[VerdictChange]:
    """Return the operations with a verdict in `judged` and none in `other`."""
    changes: list[VerdictChange] = []
    results = {result.pair: result for result in other.operations}
    for result in judged.operations:
        there = results.get(result.pair)
        if not result.is_judged or (there is not None and there.is_judged):
            continue
        reason = "not part of the run" if there is None else there.reason or NO_REASON
        changes.append(VerdictChange(result.name, result.candidate, result.verdict, reason))
    return changes


def _differences(old: ComparedRun, new: ComparedRun) -> Iterable[str]:
    """Yield the differences that may make findings look new or fixed."""
    if old.environment.attnproof != new.environment.attnproof:
        yield (
            f"attnproof {old.environment.attnproof} judged the older run, "
            f"{new.environment.attnproof} the newer one"
        )
    for name, words in _DEPTHS.items():
        was, now = old.settings.get(name), new.settings.get(name)
        if was != now:
            yield f"the older run has {was} {words}, the newer one {now}"
    for name in _COMPARED:
        was, now = old.settings.get(name) or "none", new.settings.get(name) or "none"
        if was != now:
            yield f"{name}: {_words(was)} in the older run, {_words(now)} in the newer one"
    for run, which in ((old, "older"), (new, "newer")):
        if run.settings.get("interrupted"):
            yield f"the {which} run was interrupted"


def _words(value: object) -> str:
    if isinstance(value, dict):
        value = [f"{name} {of_it}" for name, of_it in value.items()]
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
