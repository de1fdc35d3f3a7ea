"""Read the files of `attnproof mutants` and `attnproof strength`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from attnproof.harness.model.files import DamagedError, read_json
from attnproof.harness.model.strength import (
    KnownBug,
    MutationScore,
    OperationScore,
    Recall,
    Strength,
    Survivor,
)
from attnproof.harness.running.errors import UsageError
from attnproof.harness.strength.mutants.mutant import Result

MUTANTS = Path("reports/mutants/mutants.json")
"""File that `attnproof mutants` writes by default."""
RECALL = Path("reports/strength/strength.json")
"""File that `attnproof strength` writes by default."""
_SCHEMAS = ("attnproof.mutants/1", "attnproof.strength/1")


class _Mutants(msgspec.Struct):
    schema: Literal["attnproof.mutants/1"]
    candidate: str
    score: float
    results: list[Result]


class _Run(msgspec.Struct, frozen=True, rename={"shown_by": "shown by"}, kw_only=True):
    """A run on one side of a pair, with what is known of the pair.

    `strength.recall.Sighting` is not imported here: it brings all pairs with it.
    """

    pair: int
    side: Literal["before", "after"]
    seconds: float
    findings: list[str]
    oracle: str
    requests: int
    tokens: int
    thread: str
    operation: str
    mistake: str
    shown_by: str


class _Strength(msgspec.Struct):
    schema: Literal["attnproof.strength/1"]
    runs: list[_Run]


def read_strength(paths: Sequence[Path]) -> tuple[Strength, list[str]]:
    """Return what the files hold; without a path, those of the usual places, if they exist.

    Also return a sentence on each file of a usual place that cannot be read. Raise UsageError for
    a file that was named.
    """
    strength, faults = Strength(), []
    for path in paths or [path for path in (MUTANTS, RECALL) if path.is_file()]:
        try:
            strength = _with(strength, path)
        except UsageError as error:
            if paths:
                raise
            faults.append(f"strength of the checks: {error}")
    return strength, faults


def _with(strength: Strength, path: Path) -> Strength:
    try:
        tree: Any = read_json(path)
        schema = tree.get("schema") if isinstance(tree, dict) else None
        if schema == _SCHEMAS[0]:
            mutants = _mutants(msgspec.convert(tree, _Mutants), path)
            return msgspec.structs.replace(strength, mutants=mutants)
        if schema == _SCHEMAS[1]:
            recall = _recall(msgspec.convert(tree, _Strength), path)
            return msgspec.structs.replace(strength, recall=recall)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (DamagedError, msgspec.ValidationError) as error:
        raise UsageError(f"{path} is damaged: {error}; make it again") from None
    raise UsageError(f"{path} is no file of `attnproof mutants` or `attnproof strength`")


def _mutants(file: _Mutants, path: Path) -> MutationScore:
    by_operation: dict[str, list[Result]] = defaultdict(list)
    for result in file.results:
        if result.fate != "not planted":
            by_operation[result.operation].append(result)
    killed = {r.mutant.id for r in file.results if r.fate in ("killed", "timed out")}
    survived: dict[str, Result] = {}
    for result in file.results:
        if result.fate == "survived" and result.mutant.id not in killed:
            survived.setdefault(result.mutant.id, result)
    return MutationScore(
        path=str(path),
        candidate=file.candidate,
        score=file.score,
        operations=[_operation(name, own) for name, own in by_operation.items()],
        survivors=[_survivor(result) for result in survived.values()],
    )


def _operation(name: str, results: list[Result]) -> OperationScore:
    fates = Counter(result.fate for result in results)
    oracles = Counter(r.oracle or r.fate for r in results if r.fate in ("killed", "timed out"))
    return OperationScore(
        operation=name,
        killed=fates["killed"],
        timed_out=fates["timed out"],
        survived=fates["survived"],
        equivalent=fates["equivalent"],
        oracles=dict(oracles.most_common()),
    )


def _survivor(result: Result) -> Survivor:
    mutant = result.mutant
    return Survivor(
        operation=result.operation,
        function=mutant.function,
        place=f"{Path(mutant.file).name}:{mutant.line}",
        operator=mutant.operator,
        change=result.change,
        cases=result.cases,
        reason=result.reason,
    )


def _recall(file: _Strength, path: Path) -> Recall:
    bugs: dict[int, list[_Run]] = defaultdict(list)
    after = [run for run in file.runs if run.side == "after"]
    for run in file.runs:
        if run.side == "before":
            bugs[run.pair].append(run)
    return Recall(
        path=str(path),
        bugs=[_bug(runs) for runs in bugs.values()],
        correct=len(after),
        alarms=sum(bool(run.findings) for run in after),
    )


def _bug(runs: list[_Run]) -> KnownBug:
    finding_runs = [run for run in runs if run.findings]
    smallest = min(finding_runs, key=lambda run: (run.tokens, run.requests), default=None)
    return KnownBug(
        thread=runs[0].thread,
        operation=runs[0].operation,
        mistake=runs[0].mistake,
        shown_by=runs[0].shown_by,
        runs=len(runs),
        found=len(finding_runs),
        oracles=tuple(sorted({run.oracle for run in finding_runs})),
        requests=smallest.requests if smallest else 0,
        tokens=smallest.tokens if smallest else 0,
        seconds=max(run.seconds for run in runs),
    )
