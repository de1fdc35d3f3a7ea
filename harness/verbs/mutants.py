"""`attnproof mutants`: how many mutants of a candidate's functions the cases kill."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.table import Table

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import load, offered_by, resolve, with_interface
from attnproof.harness.running.errors import INCOMPLETE, MISMATCH, VERIFIED, UsageError
from attnproof.harness.running.task.fuzz import warm_up_hypothesis
from attnproof.harness.strength.mutants.judging import draw, judge, record
from attnproof.harness.strength.mutants.mutant import Mutant, Result
from attnproof.harness.strength.mutants.operators import mutants
from attnproof.harness.strength.mutants.planting import called_functions, root_of
from attnproof.harness.strength.mutants.reviewed import reviewed_reason
from attnproof.harness.strength.processes import in_processes
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import MutantsOptions
from attnproof.harness.verbs.screen import Screen
from attnproof.harness.verbs.selection import pick_operations, with_contract

_PIPED_COLUMNS = 200
"""Width of the table without a terminal."""
_KILLED = ("killed", "timed out")


@interrupt.restored_handlers()
def examine_mutants(options: MutantsOptions) -> int:
    """Judge mutants, print a line for each survivor, and the score of each operation.

    Return 1 if the score is below `--fail-under`, 3 after an interrupt. Raise UsageError.
    """
    _check_numbers(options)
    # Compiled code has no syntax tree to change.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    candidate = _candidate(options)
    operations = pick_operations(options.ops)
    module = _loaded(candidate)
    if not root_of(module).is_absolute():
        raise UsageError(f"candidate {candidate.name} has no source file: name a file or package")
    offered = [one for one in operations if offered_by(module, one, candidate.interface)]
    if not offered:
        raise UsageError(f"candidate {candidate.name} offers none of the operations asked for")
    warm_up_hypothesis()
    jobs = options.jobs or len(os.sched_getaffinity(0))
    drawn = {one.name: draw(one, candidate, options.examples, options.seed) for one in offered}
    planned, cases = _planned(offered, module, candidate, drawn, jobs)
    if not planned:
        raise UsageError(f"candidate {candidate.name}: no function in files of its own is called")
    if options.sample and options.sample < len(planned):
        planned = random.Random(options.seed).sample(planned, options.sample)
    deep = {one.name: _further(one, candidate, options, cases[one.name]) for one in offered}
    say(f"{len(planned):,} mutants of {len(offered)} operations, {options.examples} drawn cases")
    made_with = {mutant.file: _hash(options, candidate, mutant.file) for mutant, _ in planned}
    file = options.out / "results.jsonl"
    done = {} if options.restart else _read(file)
    results, work = [], []
    for mutant, name in planned:
        earlier = done.get(Result(mutant, name, "killed", made_with=made_with[mutant.file]).key)
        if earlier:
            results.append(_reviewed(earlier))
        else:
            work.append((mutant, name, module, candidate, cases[name], deep[name]))
    if results:
        say(f"{len(results):,} of them judged by an earlier run ({file})")
    with _opened(file, restart=options.restart) as ledger:
        try:
            # The command line ends the process at an interrupt until a verb handles it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for given, result in in_processes(judge, work, jobs):
                mutant, name = given[0], given[1]
                ended = result or Result(mutant, name, "killed", oracle="process")
                ended = msgspec.structs.replace(ended, made_with=made_with[mutant.file])
                ledger.write(msgspec.json.encode(ended) + b"\n")
                ledger.flush()
                results.append(_reviewed(ended))
                if results[-1].fate == "survived":
                    say(_line(results[-1]))
        except KeyboardInterrupt:
            left = len(planned) - len(results)
            say(f"interrupted with {left:,} mutants left: the same command goes on with them")
            _show(results, candidate, options.out)
            return INCOMPLETE
    score = _show(results, candidate, options.out)
    return MISMATCH if 100 * score < options.fail_under else VERIFIED


def _show(results: list[Result], candidate: Candidate, out: Path) -> float:
    """Print the table, write mutants.json, and return the score."""
    score = _score(results)
    (out / "mutants.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(_record(results, candidate, score)), indent=1)
    )
    screen = Screen()
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = _PIPED_COLUMNS
    screen.print(_table(results))
    say(_summary(results, score))
    say(f"results: {out}/mutants.json")
    return score


def _check_numbers(options: MutantsOptions) -> None:
    least = {"examples": 1, "sample": 0, "jobs": 0, "deep": 0, "fail_under": 0}
    for name, lowest in least.items():
        value = getattr(options, name)
        if value < lowest:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {value}: expected {lowest} or more")


def _further(
    operation: Operation, candidate: Candidate, options: MutantsOptions, cases: list[Case]
) -> list[Case]:
    """Return drawn cases of another seed, for survivors."""
    if not options.deep:
        return []
    known = {case.id for case in cases}
    drawn = draw(operation, candidate, options.deep, options.seed + 1)
    return [case for case in drawn if case.id not in known]


def _hash(options: MutantsOptions, candidate: Candidate, file: str) -> str:
    """Return a hash of what a result depends on: results of another source are not used again."""
    used = (options.examples, options.deep, options.seed, candidate.target, candidate.interface)
    text = f"{used}{sorted(candidate.judged)}".encode() + Path(file).read_bytes()
    return hashlib.sha256(text).hexdigest()[:12]


def _opened(file: Path, *, restart: bool) -> BinaryIO:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("wb" if restart else "ab")
    except OSError as error:
        raise UsageError(f"--out {file.parent} cannot be written: {error.strerror}") from None


def _candidate(options: MutantsOptions) -> Candidate:
    names = options.candidates or ["optimized"]
    if len(names) > 1:
        raise UsageError("mutants are made of one candidate at a time: give one --candidate")
    (candidate,) = with_contract(
        with_interface(resolve(names, options.device), options.interface), options
    )[:1]
    if candidate.lane != "cpu":
        raise UsageError("mutants are judged on CPU tensors: leave out --device")
    return candidate


def _loaded(candidate: Candidate) -> object:
    try:
        return load(candidate)
    except Exception as error:
        raise UsageError(f"candidate {candidate.name} cannot be imported: {error}") from None


def _planned(
    operations: list[Operation],
    module: object,
    candidate: Candidate,
    cases: dict[str, list[Case]],
    jobs: int,
) -> tuple[list[tuple[Mutant, str]], dict[str, list[Case]]]:
    """Return mutants, each with an operation that calls it, and the cases that pass without one."""
    planned: list[tuple[Mutant, str]] = []
    passing = dict(cases)
    with tempfile.TemporaryDirectory(prefix="attnproof-mutants-") as folder:
        seen = {one.name: Path(folder) / str(n) for n, one in enumerate(operations)}
        work = [(name, module, candidate, cases[name], file) for name, file in seen.items()]
        for given, failed in in_processes(record, work, jobs):
            name = given[0]
            if failed is None:
                raise UsageError(f"{name} of {candidate.name} ends its process without a mutant")
            passing[name] = [case for case in cases[name] if case.id not in set(failed)]
            if failed:
                say(f"{name}: {len(failed)} cases left out, which {candidate.name} fails already")
        for name, path in seen.items():
            for file, function, tree, called in called_functions(path):
                planned += [(mutant, name) for mutant in mutants(file, function, tree, called)]
    return planned, passing


def _read(file: Path) -> dict[str, Result]:
    """Return the results of an earlier run, by key; a line that was cut off is left out."""
    found = {}
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            result = msgspec.json.decode(line, type=Result)
        except msgspec.DecodeError:
            continue
        found[result.key] = result
    return found


def _reviewed(result: Result) -> Result:
    """Return a survivor of the reviewed list as equivalent."""
    reason = reviewed_reason(result.mutant) if result.fate == "survived" else ""
    return msgspec.structs.replace(result, fate="equivalent", reason=reason) if reason else result


def _line(result: Result) -> str:
    mutant = result.mutant
    place = f"{Path(mutant.file).name}:{mutant.line} {mutant.function}"
    return (
        f"SURVIVED    {result.operation}: {place}: {mutant.before}  ->  {mutant.after or 'pass'} "
        f"({mutant.operator}, {result.cases} cases{result.reason and '; '}{result.reason})"
    )


def _by_change(results: list[Result]) -> Iterator[list[Result]]:
    """Yield the results of each mutant: a shared function is judged by several operations."""
    by_mutant: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.fate != "not planted":
            by_mutant[result.mutant.id].append(result)
    yield from by_mutant.values()


def _score(results: list[Result]) -> float:
    """Return killed / (killed + survived); a mutant is killed if any operation kills it."""
    killed = alive = 0
    for group in _by_change(results):
        fates = {one.fate for one in group}
        if fates & set(_KILLED):
            killed += 1
        elif "survived" in fates:
            alive += 1
    return killed / (killed + alive) if killed + alive else 1.0


def _table(results: list[Result]) -> Table:
    table = Table(box=None)
    headings = ("operation", "mutants", "killed", "timed out", "survived", "equivalent", "score")
    for heading in (*headings, "cases", "seconds", "killed by"):
        table.add_column(heading)
    by_operation: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if result.fate != "not planted":
            by_operation[result.operation].append(result)
    for operation, group in by_operation.items():
        fates = Counter(one.fate for one in group)
        killed = [one for one in group if one.fate in _KILLED]
        oracles = Counter(one.oracle for one in killed).most_common(3)
        judged = len(killed) + fates["survived"]
        table.add_row(
            operation,
            str(len(group)),
            str(fates["killed"]),
            str(fates["timed out"]),
            str(fates["survived"]),
            str(fates["equivalent"]),
            f"{len(killed) / judged:.1%}" if judged else "",
            f"{sum(one.cases for one in killed) / len(killed):.0f}" if killed else "",
            f"{sum(one.seconds for one in group):.0f}",
            ", ".join(f"{oracle} {count}" for oracle, count in oracles),
        )
    return table


def _summary(results: list[Result], score: float) -> str:
    fates = Counter[str]()
    for group in _by_change(results):
        found = {one.fate for one in group}
        fates[next(f for f in (*_KILLED, "equivalent", "survived") if f in found)] += 1
    killed = fates["killed"] + fates["timed out"]
    return (
        f"mutation score {score:.1%}: {killed:,} killed ({fates['timed out']} of them timed out), "
        f"{fates['survived']} survived, {fates['equivalent']} equivalent by review"
    )


def _record(results: list[Result], candidate: Candidate, score: float) -> dict[str, object]:
    """Return the results as JSON has them; survivors with their change."""
    return {
        "schema": "attnproof.mutants/1",
        "candidate": candidate.name,
        "score": round(score, 4),
        "results": [msgspec.to_builtins(one) | {"id": one.mutant.id} for one in results],
    }
