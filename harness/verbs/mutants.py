"""`attnproof mutants`: how many mutants of a candidate's functions the cases kill."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import signal
import textwrap
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from rich.table import Table

from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.model.files import DamagedError, decode_json, read_regular
from attnproof.harness.model.operation import Operation
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.errors import INCOMPLETE, MISMATCH, VERIFIED, UsageError
from attnproof.harness.running.interface_choice import with_interface, with_named_interface
from attnproof.harness.running.loading import enter_lane, load, offered_by, preload_package
from attnproof.harness.running.own_operations import use_operations
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.strength.mutants.judging import Prepared, judge, prepare
from attnproof.harness.strength.mutants.mutant import KILLED, Result
from attnproof.harness.strength.mutants.planting import changed_lines, root_of
from attnproof.harness.strength.mutants.queue import Planned, Queue
from attnproof.harness.strength.mutants.reach import Reach
from attnproof.harness.strength.mutants.reviewed import needs_judging, reviewed_reason
from attnproof.harness.strength.processes import in_processes
from attnproof.harness.verbs.checks import check_out, check_seed
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.mutant_lanes import judged_elsewhere
from attnproof.harness.verbs.options import MutantsOptions
from attnproof.harness.verbs.screen import Screen
from attnproof.harness.verbs.selection import pick_operations, with_contract

_BUDGET_S, _BUDGET_REFERENCE_S = 5.0, 15.0
"""Seconds for a mutant by default, and for one of the reference, whose calls take longer."""
_PERCENT = 100
_PIPED_COLUMNS = 200
"""Width of the table without a terminal."""


@interrupt.restored_handlers()
def examine_mutants(options: MutantsOptions) -> int:
    """Judge mutants, print a line for each survivor, and the score of each operation.

    Return 1 if the score is below `--fail-under`, 3 after an interrupt. Raise UsageError.
    """
    _check(options)
    # Compiled code has no syntax tree to change.
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    candidate = _candidate(options)
    operations = pick_operations(options.ops)
    module = _loaded(candidate)
    if not root_of(module).is_absolute():
        raise UsageError(f"candidate {candidate.name} has no source file: name a file or package")
    candidate = with_named_interface(candidate, module)
    offered = [op for op in operations if offered_by(module, op, candidate.interface)]
    if not offered:
        raise UsageError(f"candidate {candidate.name} offers none of the operations asked for")
    _prepare_process(candidate, offered)
    jobs = options.jobs or len(os.sched_getaffinity(0))
    reach = Reach(root_of(module))
    prepared = _prepared(offered, module, candidate, reach, options, jobs)
    queue = Queue(module, candidate, reach, prepared)
    planned = _planned(queue, candidate, options)
    say(f"{len(planned):,} mutants of {len(prepared)} operations, {options.examples} drawn cases")
    made_with = {mutant.file: _hash(options, candidate, mutant.file) for mutant, _ in planned}
    file = options.out / "results.jsonl"

    def key_of(entry: Planned) -> str:
        mutant, names = entry
        return Result(mutant, names[0], "killed", made_with=made_with[mutant.file]).key

    done = {} if options.restart else _read(file)
    results = [_reviewed(done[key]) for key in map(key_of, planned) if key in done]
    work = [entry for entry in planned if key_of(entry) not in done]
    if results:
        say(f"{len(results):,} of them judged by an earlier run ({file})")
    if not options.deep:  # to judge one of the reviewed list would take all of its time
        reviewed = [entry for entry in work if not needs_judging(entry[0])]
        results += [_reviewed(Result(mutant, names[0], "survived")) for mutant, names in reviewed]
        work = [entry for entry in work if entry not in reviewed]
    with _opened(file, restart=options.restart) as ledger:
        try:
            # The command line ends the process at an interrupt until a verb handles it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            arguments = queue.arguments(work, _budget_s(options, candidate))
            for job, result in in_processes(judge, arguments, jobs):
                mutant, *_, rounds = job
                ended = result or Result(mutant, rounds[0].operation, "killed", oracle="process")
                queue.learn(ended)
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
    score = _show(judged_elsewhere(results, planned, candidate, options), candidate, options.out)
    return MISMATCH if 100 * score < options.fail_under else VERIFIED


def _budget_s(options: MutantsOptions, candidate: Candidate) -> float:
    """Return the seconds for a mutant."""
    if options.budget is not None:
        return options.budget
    return _BUDGET_REFERENCE_S if candidate.target == REFERENCE else _BUDGET_S


def _prepare_process(candidate: Candidate, operations: list[Operation]) -> None:
    """Import here what each fork of this process would import by itself."""
    warm_up()
    for operation in operations:
        preload_package(candidate, operation)
    if candidate.target == OPTIMIZED:  # it imports numba with the first call, in each process
        with suppress(ImportError):
            importlib.import_module("numba")


def _planned(queue: Queue, candidate: Candidate, options: MutantsOptions) -> list[Planned]:
    """Return all mutants, or a sample of them."""
    planned = queue.planned()
    if not planned:
        raise UsageError(f"candidate {candidate.name}: none of its own functions is called")
    if options.only:
        ids = _ids(options.only)
        planned = [entry for entry in planned if entry[0].id in ids]
        if not planned:
            raise UsageError(f"--only {options.only}: no id of a mutant of {candidate.name}")
    if options.sample and options.sample < len(planned):
        planned = random.Random(options.seed).sample(planned, options.sample)
        planned.sort(key=lambda entry: entry[1])  # first results let the cases that kill come first
    return planned


def _ids(file: Path) -> set[str]:
    try:
        return set(read_regular(file).decode().split())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"--only {file} cannot be read: {reason}") from None


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


def _check(options: MutantsOptions) -> None:
    """Raise UsageError for a value out of range, or a file or folder that is none."""
    least = {"examples": 1, "sample": 0, "jobs": 0, "deep": 0, "fail_under": 0, "budget": 0}
    for name, lowest in least.items():
        value = getattr(options, name)
        # Not `value < lowest`: a NaN must fail too.
        if value is not None and not value >= lowest:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} {value}: expected {lowest} or more")
    if options.fail_under > _PERCENT:
        raise UsageError(f"--fail-under {options.fail_under:g}: expected at most {_PERCENT}")
    check_seed(options.seed)
    check_out(options.out)
    if options.only:
        _ids(options.only)


def _hash(options: MutantsOptions, candidate: Candidate, file: str) -> str:
    """Return a hash of what a result depends on: results of another source are not used again."""
    used = (
        options.examples,
        options.deep,
        _budget_s(options, candidate),
        options.seed,
        options.ops,
        candidate.target,
        candidate.interface,
        candidate.stub,
    )
    text = f"{used}{sorted(candidate.judged)}".encode() + read_regular(file)
    return hashlib.sha256(text).hexdigest()[:12]


def _opened(file: Path, *, restart: bool) -> BinaryIO:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("wb" if restart else "ab")
    except OSError as error:
        raise UsageError(f"--out {file.parent} cannot be written: {error.strerror}") from None


def _candidate(options: MutantsOptions) -> Candidate:
    """Return the candidate, after its operations are registered (UsageError)."""
    use_operations(options.definitions)
    names = options.candidates or ["optimized"]
    if len(names) > 1:
        raise UsageError("mutants are made of one candidate at a time: give one --candidate")
    (candidate,) = with_contract(
        with_interface(resolve(names, options.device, options.stub), options.interface), options
    )[:1]
    if candidate.device != "cpu":
        raise UsageError("mutants are judged on CPU tensors: leave out --device")
    return candidate


def _loaded(candidate: Candidate) -> object:
    enter_lane(candidate)
    try:
        return load(candidate)
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"
        raise UsageError(f"candidate {candidate.name} cannot be imported: {text}") from None


def _prepared(
    operations: list[Operation],
    module: object,
    candidate: Candidate,
    reach: Reach,
    options: MutantsOptions,
    jobs: int,
) -> dict[str, Prepared]:
    """Return the cases of each operation that pass without a mutant."""
    prepared: dict[str, Prepared] = {}
    numbers = (options.examples, options.deep, options.seed)
    work = [(op.name, module, candidate, reach, *numbers) for op in operations]
    for job, prep in in_processes(prepare, work, jobs):
        name = job[0]
        if prep is None:
            raise UsageError(f"{name} of {candidate.name} ends its process without a mutant")
        if not prep.accepted:
            say(f"{name}: left out, as {candidate.name} fails every valid case without a mutant")
            continue
        if prep.failed:
            say(f"{name}: {prep.failed} cases left out, which {candidate.name} fails already")
        prepared[name] = prep
    if not prepared:
        raise UsageError(f"candidate {candidate.name} fails every valid case: verify it first")
    return {op.name: prepared[op.name] for op in operations if op.name in prepared}


def _read(file: Path) -> dict[str, Result]:
    """Return the results of an earlier run, by key; a line that was cut off is left out."""
    by_key = {}
    for line in read_regular(file).splitlines() if file.exists() else []:
        try:
            result: Result = decode_json(line, Result)
        except DamagedError:
            continue
        by_key[result.key] = result
    return by_key


def _reviewed(result: Result) -> Result:
    """Return a survivor of the reviewed list as equivalent, another one with its change."""
    if result.fate != "survived":
        return result
    reason = reviewed_reason(result.mutant)
    if reason:
        return msgspec.structs.replace(result, fate="equivalent", reason=reason)
    return msgspec.structs.replace(result, change=changed_lines(result.mutant))


def _line(result: Result) -> str:
    mutant = result.mutant
    place = f"{Path(mutant.file).name}:{mutant.line} {mutant.function}"
    return (
        f"SURVIVED    {result.operation}: {place} "
        f"({mutant.operator}, {result.cases} cases{result.reason and '; '}{result.reason})\n"
        + textwrap.indent(result.change.rstrip(), "    ")
    )


def _score(results: list[Result]) -> float:
    """Return killed / (killed + survived)."""
    fates = Counter(result.fate for result in results)
    killed = sum(fates[fate] for fate in KILLED)
    judged = killed + fates["survived"]
    return killed / judged if judged else 1.0


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
        fates = Counter(result.fate for result in group)
        killed = [result for result in group if result.fate in KILLED]
        oracles = Counter(result.oracle for result in killed).most_common(3)
        judged = len(killed) + fates["survived"]
        table.add_row(
            operation,
            str(len(group)),
            str(fates["killed"]),
            str(fates["timed out"]),
            str(fates["survived"]),
            str(fates["equivalent"]),
            f"{len(killed) / judged:.1%}" if judged else "",
            f"{sum(result.cases for result in killed) / len(killed):.0f}" if killed else "",
            f"{sum(result.seconds for result in group):.0f}",
            ", ".join(f"{oracle} {count}" for oracle, count in oracles),
        )
    return table


def _summary(results: list[Result], score: float) -> str:
    fates = Counter(result.fate for result in results)
    killed = sum(fates[fate] for fate in KILLED)
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
        "results": [msgspec.to_builtins(result) | {"id": result.mutant.id} for result in results],
    }
