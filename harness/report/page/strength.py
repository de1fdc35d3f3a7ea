"""The section on the strength of the checks: mutants, and bugs that shipped."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.model.run import Run
from attnproof.harness.model.strength import (
    KnownBug,
    MutationScore,
    OperationScore,
    Recall,
    Survivor,
)
from attnproof.harness.report.charts.figure import Table
from attnproof.harness.report.shared.wording import listed, many

_MOST_SURVIVORS = 60
"""Survivors that the page shows; the file has all."""
_MOST_ORACLES = 3


class ShownSurvivor(NamedTuple):
    """A survivor with its change as lines."""

    title: str
    words: str
    change: str


class Mutants(NamedTuple):
    """Mutants of one candidate."""

    sentence: str
    table: Table
    survivors: tuple[ShownSurvivor, ...]
    more: str
    """A sentence on survivors that are left out, "" without."""


class KnownBugs(NamedTuple):
    """Bugs that shipped."""

    sentence: str
    table: Table


class StrengthSection(NamedTuple):
    """The section's contents."""

    mutants: Mutants | None
    bugs: KnownBugs | None


def build_strength(run: Run) -> StrengthSection:
    """Return the section; parts that were not measured are None."""
    mutants, recall = run.strength.mutants, run.strength.recall
    return StrengthSection(
        _mutants(mutants) if mutants else None, _known_bugs(recall) if recall else None
    )


def _mutants(score: MutationScore) -> Mutants:
    left = len(score.survivors) - _MOST_SURVIVORS
    sentence = (
        f"Mutation score {score.score:.1%}: the cases notice this share of the changes that were "
        f"made to {score.candidate}, one at a time; "
        f"{many(len(score.survivors), 'change')} survived. "
        f"Read from {score.path}."
    )
    worst_first = sorted(
        score.operations, key=lambda operation: (_share(operation), -operation.survived)
    )
    head = ("Operation", "Score", "Killed", "Timed out", "Survived", "Equivalent", "Killed by")
    table = Table(
        "Mutants of the functions that an operation calls, the lowest score first",
        head,
        tuple(map(_score_row, worst_first)),
    )
    return Mutants(
        sentence,
        table,
        tuple(map(_shown, score.survivors[:_MOST_SURVIVORS])),
        f"{many(left, 'more survivor')} in {score.path}." if left > 0 else "",
    )


def _share(operation: OperationScore) -> float:
    return 2.0 if operation.score is None else operation.score


def _score_row(operation: OperationScore) -> tuple[str, ...]:
    oracles = [f"{oracle} {count:,}" for oracle, count in operation.oracles.items()]
    counts = (operation.killed, operation.timed_out, operation.survived, operation.equivalent)
    score = "none counts" if operation.score is None else f"{operation.score:.1%}"
    return (operation.operation, score, *(f"{n:,}" for n in counts), listed(oracles, _MOST_ORACLES))


def _shown(survivor: Survivor) -> ShownSurvivor:
    further = f"; {survivor.reason}" if survivor.reason else ""
    return ShownSurvivor(
        f"{survivor.place} {survivor.function}",
        f"{survivor.operator}, {survivor.operation}, {many(survivor.cases, 'case')}{further}",
        survivor.change,
    )


def _known_bugs(recall: Recall) -> KnownBugs:
    share = f" ({recall.found / recall.runs:.0%})" if recall.runs else ""
    sentence = (
        f"Bugs that shipped: {recall.found:,} of {many(recall.runs, 'run')} on a backend with one "
        f"of them find it{share}. False alarms: {recall.alarms:,} of "
        f"{many(recall.correct, 'run')} on correct backends. Read from {recall.path}."
    )
    missed_first = sorted(recall.bugs, key=lambda bug: bug.found == bug.runs)
    head = ("Thread", "Operation", "Mistake", "Noticed then", "Found by", "Requests", "Tokens")
    rows = tuple(map(_bug_row, missed_first))
    return KnownBugs(sentence, Table("Bugs that shipped, missed ones first", head, rows))


def _bug_row(bug: KnownBug) -> tuple[str, ...]:
    part = f" ({bug.found} of {bug.runs})" if 0 < bug.found < bug.runs else ""
    finders = ", ".join(bug.oracles) + part if bug.found else "✗ not found"
    sizes = (f"{bug.requests:,}", f"{bug.tokens:,}") if bug.found else ("", "")
    return (bug.thread, bug.operation, bug.mistake, bug.shown_by, finders, *sizes)
