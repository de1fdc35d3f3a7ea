"""`attnproof deviations --draft RUN`: a file of known deviations from the findings of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.candidate import device_type
from attnproof.harness.model.case import Case, decode
from attnproof.harness.model.files import DamagedError, decode_json, read_json, read_regular
from attnproof.harness.operations import ALL
from attnproof.harness.report.shared.comparison import read_run
from attnproof.harness.running.cases import CaseError, remembered_case
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.results import RESULTS
from attnproof.harness.running.task.drafted_conditions import condition_of, holds_for
from attnproof.harness.running.task.task import FAIL_ALONE
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import DeviationsOptions

Pair = tuple[str, str]


class _Operation(msgspec.Struct):
    name: str
    candidate: str
    device: str
    verdict: str
    reason: str = ""


class _Finding(msgspec.Struct):
    id: str
    operation: str
    candidate: str
    oracle: str
    fields: tuple[str, ...]
    diagnosis: str
    message: str
    case_path: str


class _Run(msgspec.Struct):
    """The part of summary.json that a draft needs."""

    started: str
    operations: list[_Operation]
    findings: list[_Finding]
    notes: list[str] = []


class _Line(msgspec.Struct):
    """The part of a line of results.jsonl that a draft needs."""

    id: str
    operation: str
    candidate: str
    failures: list[tuple[str, str, str]] = []
    """Oracle, field and diagnosis of each failure that fails the candidate."""
    case: msgspec.Raw = msgspec.Raw()


@dataclass
class _Entry:
    """An entry of the file: a finding with the failures and the cases that it explains."""

    id: str
    title: str
    operation: str
    lane: str
    comments: list[str]
    source: str
    shown: set[Pair] = field(default_factory=set)
    """Oracle and field of its failures."""
    cases: list[Case] = field(default_factory=list)
    diagnoses: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    """Ids of the operation's cases that did not fail."""


def write_draft(options: DeviationsOptions) -> None:
    """Write the draft to `options.out`, or print it. Raise UsageError before anything is written.

    The file must not exist.
    """
    text = draft(options.draft)
    if options.out is None:
        say(text.rstrip())
        return
    try:
        with options.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"--out {options.out} exists: name another file, or remove it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--out {options.out} cannot be written: {reason}") from None
    say(f"{options.out}: {text.count('[[deviation]]')} entries; edit them before you commit them")


def draft(path: Path) -> str:
    """Return the text of a file with an entry for each finding of the run (UsageError)."""
    read_run(path)
    folder = path if path.is_dir() else path.parent
    summary = path / "summary.json" if path.is_dir() else path
    try:
        run = read_json(summary, _Run)
    except (OSError, DamagedError) as error:
        raise UsageError(f"{summary} cannot be read: {error}") from None
    lines = _lines(folder / RESULTS)
    entries = [*_entries(run, lines), *_combined(run)]
    if not entries:
        raise UsageError(f"{path} has no finding: there is nothing to draft")
    return "\n".join([*_head(run, folder), *(_toml(entry, folder) for entry in entries)])


def _lines(path: Path) -> list[_Line]:
    """Return the cases of the run (UsageError)."""
    try:
        return [decode_json(line, _Line) for line in read_regular(path).splitlines()]
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; a draft needs the whole report"
        ) from None
    except DamagedError as error:
        raise UsageError(f"{path} is damaged: {error}; run verify again") from None


def _entries(run: _Run, lines: list[_Line]) -> Iterator[_Entry]:
    """Yield an entry for each finding, and one for an operation that fails by another one."""
    for operation in run.operations:
        pair = operation.name, operation.candidate
        every = [line for line in lines if (line.operation, line.candidate) == pair]
        own = [line for line in every if line.failures]
        entries = [
            _of_finding(finding, operation)
            for finding in run.findings
            if (finding.operation, finding.candidate) == pair
        ]
        if own and not entries and operation.verdict == "FAIL":
            entries = [_of_operation(operation, operation.reason or "fails")]
        if entries:
            _divide(own, entries)
            passed = {line.id for line in every if not line.failures}
            yield from (replace(entry, passed=passed) for entry in entries)


def _of_finding(finding: _Finding, operation: _Operation) -> _Entry:
    return _Entry(
        finding.id,
        finding.diagnosis,
        operation.name,
        device_type(operation.device),
        [f"{finding.diagnosis}: {finding.message}"],
        finding.case_path,
        {(finding.oracle, name) for name in finding.fields},
    )


def _of_operation(operation: _Operation, reason: str) -> _Entry:
    lane = device_type(operation.device)
    name = f"{operation.name}-{operation.candidate}"
    return _Entry(name, reason, operation.name, lane, [reason], "")


def _divide(lines: list[_Line], entries: list[_Entry]) -> None:
    """Give each failure to the finding that it is of, or beside which it shows most often."""
    pairs = {(oracle, name) for line in lines for oracle, name, _ in line.failures}
    held = [{(o, name) for o, name, _ in line.failures} for line in lines]
    for pair in sorted(pairs):
        owners = [entry for entry in entries if pair in entry.shown]
        counts = [sum(pair in shown and bool(shown & e.shown) for shown in held) for e in entries]
        for owner in owners or [entries[counts.index(max(counts))]]:
            owner.shown.add(pair)
    for line, shown in zip(lines, held, strict=True):
        case = _case(line)
        for entry in entries:
            if shown & entry.shown:
                entry.cases.append(case)
                entry.diagnoses |= {d for o, name, d in line.failures if (o, name) in entry.shown}


def _case(line: _Line) -> Case:
    try:
        if line.operation not in ALL:  # a builder of the candidate, which is not imported here
            return decode(bytes(line.case))
        return remembered_case(bytes(line.case))
    except (CaseError, msgspec.ValidationError) as error:
        raise UsageError(f"a case of {line.operation} in {RESULTS}: {error}") from None


def _combined(run: _Run) -> Iterator[_Entry]:
    """Yield an entry for each operation that ran without the functions that fail by themselves.

    They fail in it too as soon as their own failures are known.
    """
    for operation in run.operations:
        place = f"{operation.name} [{operation.candidate}]: "
        alone = operation.verdict == "UNVERIFIED" and operation.reason.endswith(FAIL_ALONE)
        noted = any(n.startswith(place) and n.endswith(FAIL_ALONE) for n in run.notes)
        if alone or noted:
            entry = _of_operation(operation, "follows from functions that deviate by themselves")
            entry.comments += [
                "It was verified without these functions, so that no case shows what they do here.",
                "Narrow this entry (fields, diagnoses, when) after a run with this file.",
            ]
            yield entry


def _head(run: _Run, folder: Path) -> Iterator[str]:
    yield f"# Drafted from {escape_line(folder)}, a run of {escape_line(run.started)}."
    yield "# Edit each entry: say in title and reference why it is accepted, and narrow `when`."
    yield ""


def _toml(entry: _Entry, folder: Path) -> str:
    others = sorted(entry.diagnoses - {entry.title})
    lines = [f"# {escape_line(comment)}" for comment in entry.comments]
    lines += [f"# also: {escape_line(', '.join(others))}"] if others else []
    when = condition_of(entry.cases)
    hidden = _hidden(entry, when)
    lines += [f"# It hides failures of {hidden} more edge cases: narrow `when`."] if hidden else []
    source = f"{folder / entry.source}" if entry.source else f"{folder}"
    lines += [f"# attnproof replay {escape_line(source)}"] if entry.source else []
    fields = sorted({name for _, name in entry.shown})
    values: dict[str, str | list[str]] = {
        "id": entry.id,
        "title": entry.title,
        "operations": [entry.operation],
        "versions": "*",
        "reference": f"to be explained, see {source}",
        "when": when,
        "oracles": sorted({oracle for oracle, _ in entry.shown}),
        "fields": fields if all(fields) else [],
        "lanes": [entry.lane],
    }
    assignments = [f"{name} = {_quoted(value)}" for name, value in values.items() if value != []]
    return "\n".join([*lines, "[[deviation]]", *assignments, ""])


def _hidden(entry: _Entry, when: str) -> int:
    """Return the number of edge cases that did not fail, and for which the condition holds."""
    if entry.operation not in ALL:
        return 0
    boundaries = ALL[entry.operation].inputs.boundaries()
    return sum(case.id in entry.passed and holds_for(when, [case]) for _, case in boundaries)


def _quoted(value: str | list[str]) -> str:
    """Return a string or an array of TOML; those of printable text are written as in JSON."""
    printable = escape_line(value) if isinstance(value, str) else [*map(escape_line, value)]
    return json.dumps(printable, ensure_ascii=False)
